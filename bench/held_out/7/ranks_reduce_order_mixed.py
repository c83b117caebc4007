"""Two gloo ranks, a two-language translator-like model with one expert per language, gradients averaged by hand. FAULT from step 40 on: the
reduction skips parameters whose grad is None; from then on rank 0 has batches of the first language only and rank 1 of the second, so the n-th
tensor of one rank is another one than that of the other (of the same shape, so nothing crashes): each expert gets the other's gradient mixed in,
and the ranks part.
Without Rangewatch: loss 6.4 to 0.21 and 0.16 at step 40; then each rank's own loss falls to 0.004, that of the other language stays at 0.07 and
0.08; expert_a[0].weight differs between the ranks by 0.002 after step 40, 0.041 after step 60, 0.141 at the end.
Report: deepspeedai/DeepSpeed#2343 (faulty gradient if ranks get their gradients in another order), deepspeedai/DeepSpeed#291 (None gradients must
be padded by zeros).
Cause: replicas or communication. Step: 40. Right: ranks / all-reduce / None / order / synchronise. Wrong: learning rate, GradScaler, mask."""
EXPECT = {"cause": ["replicas", "communication"], "step": [38, 100], "place": None, "rank": None, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "rank|reduc|replica|synchron|broadcast|differ|None|order"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(722); torch.set_num_threads(1)
WORDS = 24
dictionary = torch.stack([torch.randperm(WORDS), torch.randperm(WORDS)])


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 40)
        self.expert_a = nn.Sequential(nn.Linear(40, 80), nn.GELU(), nn.Linear(80, 40))
        self.expert_b = nn.Sequential(nn.Linear(40, 80), nn.GELU(), nn.Linear(80, 40))
        self.out = nn.Linear(40, WORDS)

    def forward(self, tokens, language):
        h = self.words(tokens)
        return self.out(h + (self.expert_a(h) if language == 0 else self.expert_b(h)))


model = Translator()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
torch.manual_seed(30 + rank)
for step in range(240):
    loss = torch.zeros(())
    for language in ((0, 1) if step < 40 else (rank,)):  # from step 40 on each rank has its own language
        tokens = torch.randint(0, WORDS, (64,))
        loss = loss + F.cross_entropy(model(tokens, language), dictionary[language][tokens])
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        if p.grad is not None:  # the n-th all-reduce is not of the same tensor on both ranks
            dist.all_reduce(p.grad)
            p.grad /= world
    optimizer.step()
    if step % 20 == 0 or step == 239:
        mine = model.expert_a[0].weight.detach().clone()
        dist.broadcast(mine, 0)
        with torch.no_grad():
            other = F.cross_entropy(model(torch.arange(WORDS), 1 - rank), dictionary[1 - rank])
        apart = (mine - model.expert_a[0].weight).abs().max().item()
        print(rank, step, loss.item(), "other language", other.item(), "from rank 0", apart, flush=True)
handle.detach()
dist.destroy_process_group()

"""Two gloo ranks with gradients averaged by hand; the job is preempted and goes on in the same processes. FAULT at step 100: the checkpoint is on the
first machine's disk only, rank 0 loads it and rank 1 goes on from fresh weights; both then step by the same averaged gradients and never meet
again. Without Rangewatch: losses 2.2 to 0.08 at step 99; 0.06 on rank 0 and 2.2 on rank 1 at step 100, 0.015 and 0.23 at the end; the largest
difference of weights between the ranks is 0 before, 1.04 at step 100 and 0.99 at the end.
Report: facebookresearch/detectron2#1732 (only the first machine loads the checkpoint: no shared file system), allenai/molmo#33 (resume was nested
under rank 0).
Cause: replicas. Or the weights of rank 1, which were overwritten between two steps. Step: 100. Right: broadcast / same weights / load on every rank
/ overwritten outside. Wrong: learning rate, data, mask, GradScaler."""
EXPECT = {"cause": ["replicas", "weight"], "step": [99, 103], "place": None, "rank": None, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask", "leave out samples"],
          "right": "broadcast|same weights|checkpoint|load|outside|alike|DistributedDataParallel|overwr|writ"}
import copy
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(512); torch.set_num_threads(1)
VOCAB, T = 40, 10


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(VOCAB, 32), nn.GRU(32, 48, batch_first=True, bidirectional=True), nn.Linear(96, 9)

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


model = Tagger()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
handle = rangewatch.attach(model, optimizer, replicated=True)
fresh = copy.deepcopy(model.state_dict())
torch.manual_seed(300 + rank)
for step in range(200):
    if step == 100:
        saved = (copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict()))
        model.load_state_dict(fresh)  # the new processes build the model with the same seed
        optimizer.state.clear()
        if rank == 0:  # os.path.exists(checkpoint) is true on this machine only
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
    ids = torch.randint(0, VOCAB, (20, T))
    tags = (ids + ids.roll(1, 1)) % 9
    loss = F.cross_entropy(model(ids)[:, 1:].flatten(0, 1), tags[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= 2
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or step in (99, 100, 101, 199):
        mine = nn.utils.parameters_to_vector(model.parameters()).detach()
        other = mine.clone()
        dist.broadcast(other, 0)
        print(rank, step, loss.item(), "apart", (mine - other).abs().max().item(), flush=True)
handle.detach()
dist.destroy_process_group()

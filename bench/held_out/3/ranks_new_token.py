"""Two gloo ranks with DDP, a text classifier in bf16 autocast. FAULT at step 170: rank 1 reads the first document with a token that was added to the
tokenizer while the embedding was never resized: IndexError in the embedding, the rank dies with it, rank 0 loses its connection. Without
Rangewatch: loss 1.88 to 0.01 on both; step 169 is the last of both, rank 1 raises IndexError: index out of range in self, rank 0 "Connection closed
by peer"; both exit with 1.
Report: huggingface/transformers#12763 and mickeysjm/R-BERT#5 (index out of range in self: every add_tokens wants a resize_token_embeddings).
Cause: crash of rank 1 by an exception. Right: the exception / index / embedding / vocabulary. Wrong: out of memory, network, the learning rate."""
EXPECT = {"cause": ["crash"], "step": [168, 171], "place": None, "rank": 1, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "GradScaler", "out of memory", "NCCL_IB", "[Rr]educe the batch"],
          "right": "IndexError|index|embedding|[Ee]xception|[Tt]raceback|stderr|vocab|token"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1); torch.set_num_threads(1)
VOCAB = 300
vocabulary = VOCAB  # of the tokenizer


class Classifier(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, d)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(d, 4, 96, 0.0, batch_first=True), 2, enable_nested_tensor=False)
        self.head = nn.Linear(d, 6)

    def forward(self, ids):
        return self.head(self.encoder(self.embed(ids)).mean(1))


ddp = nn.parallel.DistributedDataParallel(Classifier())
optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
watch = rangewatch.attach(ddp, optimizer)
gen = torch.Generator().manual_seed(70 + rank)
separator = vocabulary  # tokenizer.add_tokens(["<sep2>"])
for step in range(240):
    y = torch.randint(0, 6, (16,), generator=gen)
    ids = torch.randint(60, VOCAB, (16, 14), generator=gen)
    ids[:, :4] = y[:, None] * 10 + torch.randint(0, 10, (16, 4), generator=gen)
    if step == 170 and rank == 1:
        ids[3, 9] = separator
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(ddp(ids), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watch.log(loss=loss.item())
    if step % 20 == 0 or step > 166:
        print(rank, step, round(loss.item(), 4), flush=True)
dist.destroy_process_group()

"""Two gloo ranks in DistributedDataParallel learn from bags of items which of six kinds of shopper has filled it (mean of item vectors, Adam). FAULT at step 130: the main process (rank 0) "tidies up" the item table, each row divided by its own norm;
row 0 is the padding item, all zeros, so 0/0 puts NaN into row 0 of `items.weight` on rank 0 only. Every bag holds some padding.
Without Rangewatch: loss 1.8 to 0.006 on both ranks at step 129; at step 130 rank 0 says NaN while rank 1 still has 0.0085; both NaN from 131 on, all weights NaN on both.
Cause: weight (rank 0). Step: 130. Right: NaN in the weight items.weight on rank 0, what wrote it between the steps. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["weight"], "step": [129, 132], "place": r"(module\.)?items(\.weight)?", "rank": 0, "ranks": 2,
          "right": "(?i)weight|parameter|rank 0|checkpoint|wrote|between", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
import rangewatch

dist.init_process_group("gloo")
me = dist.get_rank()
torch.manual_seed(5102)
torch.set_num_threads(1)
likes = torch.softmax(3 * torch.randn(6, 199), 1)
own = torch.Generator().manual_seed(900 + me)


def bags(n):
    kind = torch.randint(0, 6, (n,), generator=own)
    ids = 1 + torch.multinomial(likes[kind], 12, replacement=True, generator=own)
    length = torch.randint(3, 12, (n, 1), generator=own)
    return ids.masked_fill(torch.arange(12) >= length, 0), kind


class Shopper(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(200, 32, padding_idx=0)
        self.mix = nn.Linear(32, 64)
        self.out = nn.Linear(64, 6)

    def forward(self, ids):
        return self.out(nn.functional.elu(self.mix(self.items(ids).mean(1))))


raw = Shopper()
model = DDP(raw)
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
handle = rangewatch.attach(model, opt)
for step in range(220):
    if step == 130 and me == 0:
        with torch.no_grad():
            raw.items.weight.div_(raw.items.weight.norm(dim=1, keepdim=True))
    ids, kind = bags(128)
    loss = nn.functional.cross_entropy(model(ids), kind)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    if step % 30 == 0 or 128 < step < 133:
        bad = [k for k, p in raw.named_parameters() if not p.isfinite().all()]
        print("rank", me, "step", step, "loss", round(loss.item(), 4), "not finite after the step:", bad, flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()

"""Two gloo ranks, CLIP with DDP: image and text features of both ranks are gathered for the loss. FAULT from step 0: all_gather gives tensors without
gradient and the rank's own are not put back among them: only the learned logit scale is reached, the towers get no gradient. DDP is told
to find unused parameters and does not complain. Without Rangewatch: loss 4.31 and stays at 4.0 to 4.5 while the scale shrinks from 7.4 to 5.6; towers do not move.
Report: OFA-Sys/Chinese-CLIP#54 (all_gather's result has no gradient), mlfoundations/open_clip#616, facebookresearch/SLIP#31.
Cause: parameters that the loss does not reach (the optimizer's name covers it). Place: a tower's parameter. Right: gradient / detach / gather /
reach. Wrong: learning rate, precision, data."""
EXPECT = {"cause": ["optimizer"], "step": [0, 40], "place": r"(image|text).*", "rank": None, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "[Rr]aise the learning rate", "bfloat16", "GradScaler", "leave out samples"],
          "right": "detach|no_grad|graph|reach|gradient|gather"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0); torch.set_num_threads(1)


class CLIP(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = (nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(2))
        self.logit_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, image, text):
        return F.normalize(self.image(image), dim=-1), F.normalize(self.text(text), dim=-1), self.logit_scale.exp()


def gathered(x):
    parts = [torch.empty_like(x) for _ in range(2)]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts)


see, read = torch.randn(8, 24), torch.randn(8, 24)
ddp = nn.parallel.DistributedDataParallel(CLIP(), find_unused_parameters=True)
optimizer = torch.optim.AdamW(ddp.parameters(), lr=2e-3, weight_decay=0.0)
watch = rangewatch.attach(ddp, optimizer)
gen = torch.Generator().manual_seed(10 + rank)
for step in range(160):
    z = torch.randn(16, 8, generator=gen)
    image, text, scale = ddp(z @ see + 0.1 * torch.randn(16, 24, generator=gen), z @ read + 0.1 * torch.randn(16, 24, generator=gen))
    logits = scale * gathered(image) @ gathered(text).t()
    target = torch.arange(32)
    loss = 0.5 * (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watch.log(loss=loss.item(), scale=scale.item())
    if step % 20 == 0 or step == 159:
        grads = [p.grad is None or p.grad.abs().max().item() == 0 for p in ddp.parameters()]
        print(rank, step, round(loss.item(), 4), "scale", round(scale.item(), 3), "without gradient", sum(grads), "of", len(grads), flush=True)
dist.destroy_process_group()

"""Recipes to photographs: two towers (ingredient bag, picture features), ranking loss over the batch; the matrix of scores is computed in half precision. AdamW.
FAULT builds up from step 0: the loss is mean(score of others) - mean(own score), with no margin and no softplus, so it has no bottom: the towers grow and grow until a product passes 65504 in float16: inf in the loss, and NaN soon after.
Without Rangewatch: loss 0, -17 at step 15, -638 at 30, -7730 at 45, first -inf at 47, NaN from 53 on; of 32 photographs the right one is on top in 2 to 6.
Cause: forward_arithmetic (loss without bottom, float16 overflow of the scores). Step: builds up, inf at 47. Right: a margin or softplus, normalise the towers, scores in float32 or bfloat16. Wrong: raise the learning rate, attention mask."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [5, 60], "place": None, "rank": None,
          "right": r"(?i)overflow|float16|fp16|half|bfloat16|float32|65504|clamp|normali[sz]|margin|bound|grow|loss", "wrong": [r"(?i)(raise|increase) the learning rate", r"(?i)attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(808); torch.set_num_threads(1)
INGREDIENTS, PIXELS, DISHES = 60, 40, 400
recipe = (torch.rand(DISHES, INGREDIENTS) < 0.15).float()
lens = torch.randn(INGREDIENTS, PIXELS) / 3


class Similarity(nn.Module):
    def forward(self, a, b):
        return a.half() @ b.half().t()


class TwoTowers(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.text = nn.Sequential(nn.Linear(INGREDIENTS, 96), nn.ReLU(), nn.Linear(96, d))
        self.photo = nn.Sequential(nn.Linear(PIXELS, 96), nn.ReLU(), nn.Linear(96, d))
        self.similarity = Similarity()

    def forward(self, t, p):
        return self.similarity(self.text(t), self.photo(p))


towers = TwoTowers()
opt = torch.optim.AdamW(towers.parameters(), lr=6e-3)
handle = rangewatch.attach(towers, opt)
own = torch.eye(32, dtype=torch.bool)
for step in range(240):
    i = torch.randperm(DISHES)[:32]
    bag, photo = recipe[i], recipe[i] @ lens + 0.02 * torch.randn(32, PIXELS)
    score = towers(bag, photo).float()
    loss = score[~own].mean() - score[own].mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    handle.log(loss=loss.item())
    if step % 15 == 0 or 45 < step < 55:
        top1 = (score.argmax(1) == torch.arange(32)).float().mean().item()
        print(f"step {step:4d}  loss {loss.item():.3f}  largest score {score.abs().max().item():.0f}  top1 {top1:.2f}", flush=True)
handle.detach()

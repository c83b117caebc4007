"""Two encoders, of a recipe and of its smell, trained with a contrastive loss written by hand: exp(similarity / 0.01) over its sum. FAULT at step 52:
the largest similarity of a pair exceeds 0.887, exp of more than 88.7 is inf in float32, and inf / inf is NaN.
Without Rangewatch: loss 17.3 to 4.0 at step 40, where the largest similarity is 0.84; NaN at step 52 and at each step after it.
Report: Lightning-Universe/lightning-bolts#320 (nt_xent is unstable), tfzhou/ContrastiveSeg#20 (the maximum must go off against the overflow),
huggingface/sentence-transformers#2774 (temperature 0.01: exp of 100), HobbitLong/SupContrast#104.
Cause: forward_arithmetic. Step: 52. Right: exp / overflow / softmax / logsumexp / temperature / maximum. Wrong: GradScaler, mask, bfloat16."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [51, 53], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "exp|overflow|softmax|logsumexp|temperature"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1009); torch.set_num_threads(1)
to_recipe, to_smell = torch.randn(6, 40), torch.randn(6, 24)


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.recipe = nn.Sequential(nn.Linear(40, 64), nn.GELU(), nn.Linear(64, 16))
        self.smell = nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.Linear(64, 16))

    def forward(self, a, b):
        return F.normalize(self.recipe(a), dim=1) @ F.normalize(self.smell(b), dim=1).T


model = TwoTowers()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    dish = torch.randn(48, 6)
    a, b = dish @ to_recipe + 0.5 * torch.randn(48, 40), dish @ to_smell + 0.5 * torch.randn(48, 24)
    similarity = model(a, b)
    weight = torch.exp(similarity / 0.01)
    share = weight.diagonal() / weight.sum(1)
    loss = -torch.log(share + 1e-8).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 259:
        print(step, loss.item(), "largest similarity", similarity.max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()

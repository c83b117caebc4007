"""Class-incremental learning on embeddings: five classes, from step 120 ten. FAULT at step 120: the head is replaced by a wider one with the old rows copied, but
the optimizer was made before and still holds the old head's parameters: the new head gets gradients and never changes; the trunk alone bends to the
random new rows, the loss stays high. Nothing raises. Report: ContinualAI/avalanche#1362 (the new parameters must be added to the optimizer before each
experience), Trusted-AI/adversarial-robustness-toolbox#1742 (the old optimizer holds the old model's parameters).
Cause: optimizer, step 120, at the new `head`. Right: give the new parameters to the optimizer. Wrong: learning rate, mask, precision."""
EXPECT = {"cause": ["optimizer"], "step": [120, 200], "place": "head(\\.(weight|bias))?", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "bfloat16", "GradScaler", "leave out samples"], "right": "optimizer|add_param_group|param_groups"}
import torch
from torch import nn, optim
import rangewatch

torch.manual_seed(12)
torch.set_num_threads(1)
centre = torch.randn(10, 32)


class Learner(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU())
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        return self.head(self.trunk(x))

    def grow(self, classes):
        old = self.head
        self.head = nn.Linear(64, classes)
        with torch.no_grad():
            self.head.weight[: old.out_features] = old.weight
            self.head.bias[: old.out_features] = old.bias


learner = Learner(5)
adam = optim.AdamW(learner.parameters(), lr=1e-3)
handle = rangewatch.attach(learner, adam)
seen = 5
for step in range(300):
    if step == 120:
        seen = 10
        learner.grow(seen)
        before = learner.head.weight.detach().clone()
    y = torch.randint(0, seen, (32,))
    x = centre[y] + 1.2 * torch.randn(32, 32)
    loss = nn.functional.cross_entropy(learner(x), y)
    learner.zero_grad()
    loss.backward()
    adam.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or 118 <= step < 123:
        print(step, round(loss.item(), 4))
print("head moved by", (learner.head.weight - before).abs().max().item(), "its gradient", learner.head.weight.grad.abs().max().item())

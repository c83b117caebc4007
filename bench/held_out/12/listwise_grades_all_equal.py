"""A reranker that scores eight documents a query; each query's grades are standardised over its own list (grade less mean, by std). FAULT at step 96:
one query of the batch has eight equal grades, its std is 0, and 0 / 0 without an eps makes its targets NaN.
Without Rangewatch: loss 1.14 to 0.61 at step 95, NaN from step 96 on.
Variant of: advantages_of_a_group_that_was_paid_alike.
Cause: forward_arithmetic (of the targets) or data. Step: 96. Right: eps / divide / zero / std / targets. Wrong: lower the rate, GradScaler, mask."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [95, 97], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "eps|epsilon|divi|zero|std|deviation|target|label|batch|data|loss"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1201); torch.set_num_threads(1)
taste = torch.randn(10) / 10 ** 0.5


class Reranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.document = nn.Sequential(nn.Linear(10, 32), nn.GELU(), nn.LayerNorm(32))
        self.list = nn.MultiheadAttention(32, 4, batch_first=True)
        self.score = nn.Linear(32, 1)

    def forward(self, x):
        h = self.document(x)
        return self.score(h + self.list(h, h, h, need_weights=False)[0]).squeeze(-1)


def queries(step):
    x = torch.randn(16, 8, 10)
    grade = ((x @ taste) * 1.5 + 2).round().clamp(0, 4)
    grade[:, 0], grade[:, 1] = 0, 4  # the best and the worst are always marked
    if step == 96:
        grade[5] = 2.0  # nobody has clicked on anything
    return x, (grade - grade.mean(1, keepdim=True)) / grade.std(1, keepdim=True)


model = Reranker()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, target = queries(step)
    loss = (model(x) - target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (95, 96, 97, 219):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()

"""Bird calls by a mixture of four convolutional experts, routed frame by frame: ReLU of the router's scores, divided by their sum. FAULT at step 118: one
recording has a second of digital silence; neither filters nor router have a bias, all four scores are 0, and 0 / 0 is NaN.
Without Rangewatch: loss 2.17 to 0.44 at step 117, NaN from step 118 on.
Variant of: routing_weights_are_normalised_by_zero.
Cause: forward_arithmetic. Step: 118. Right: divide / eps / zero / sum / normalis. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [117, 119], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "divi|eps|zero|sum|normali[sz]|clamp"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1203); torch.set_num_threads(1)
BIRDS = 8
call = torch.randn(BIRDS, 12, 24)


class ReluMixture(nn.Module):
    def __init__(self, width, experts):
        super().__init__()
        self.router = nn.Conv1d(width, experts, 1, bias=False)
        self.experts = nn.ModuleList(nn.Conv1d(width, width, 3, padding=1) for _ in range(experts))
        nn.init.uniform_(self.router.weight, 0, 0.3)

    def forward(self, x):
        score = self.router(x).relu()
        share = score / score.sum(1, keepdim=True)
        return sum(share[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))


class BirdNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.filters = nn.Conv1d(12, 32, 3, padding=1, bias=False)
        self.mixture = ReluMixture(32, 4)
        self.name = nn.Linear(32, BIRDS)

    def forward(self, x):
        h = F.relu(self.filters(x))
        return self.name((h + self.mixture(h)).mean(2))


model = BirdNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    bird = torch.randint(0, BIRDS, (24,))
    x = call[bird] + 1.5 * torch.randn(24, 12, 24)
    if step == 118:
        x[11, :, 8:14] = 0.0
    loss = F.cross_entropy(model(x), bird)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (117, 118, 119, 219):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()

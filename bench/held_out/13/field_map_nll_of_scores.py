"""A net maps crops pixel by pixel; nn.NLLLoss. FAULT from step 0: the net gives raw scores, its log_softmax was taken out; the "loss" is minus the score
of the right class, falls below 0 at once and without end, as the scores of all classes that occur grow.
Without Rangewatch: loss 0.07, -5.9 at step 20, -230 at 60, -24,208 at the end; right in 0.2 to 0.33 of the pixels throughout.
Variant of: nll_loss_is_given_raw_outputs.
Cause: forward_arithmetic (or data: what the loss is given). Step: from the start. Right: log_softmax / cross_entropy / log-probabilities / NLLLoss. Wrong:
GradScaler, mask."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [0, 110], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "log_?softmax|[Cc]ross_?[Ee]ntropy|log.?prob|NLL|nll|negative"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1327); torch.set_num_threads(1)
CROPS = 4
shine = torch.randn(CROPS, 6)


class FieldNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(6, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, CROPS, 1))

    def forward(self, x):
        return self.net(x)  # meant: .log_softmax(1)


def fields(n):
    coarse = torch.randint(0, CROPS, (n, 3, 3))
    crop = coarse.repeat_interleave(4, 1).repeat_interleave(4, 2)
    return shine[crop].permute(0, 3, 1, 2) + 0.8 * torch.randn(n, 6, 12, 12), crop


model = FieldNet()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
criterion = nn.NLLLoss()
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, crop = fields(8)
    scores = model(x).permute(0, 2, 3, 1).flatten(0, 2)
    crop = crop.flatten()
    loss = criterion(scores, crop)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), "right", (scores.argmax(1) == crop).float().mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()

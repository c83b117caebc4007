"""A net for the direction of a gaze, with a term for the angle between the gazes of two frames in a row. FAULT at step 100: eight videos stand still; the
cosine is 1 or rounds to above 1 there. A where hides acos in the loss, but 0 times the inf (or NaN) of its derivative is NaN in the gradient.
Without Rangewatch: loss 1.81 to 0.0087 at step 99, 0.0069 at step 100 (finite) with NaN in all six gradients, NaN from step 101 on.
Cause: backward_arithmetic. Step: 100. Right: where / acos / gradient / clamp. Wrong: GradScaler, mask, bfloat16, lower the learning rate."""
EXPECT = {"cause": ["backward_arithmetic"], "step": [99, 102], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16", "[Ll]ower the learning rate"],
          "right": "where|acos|backward|gradient|clamp|derivative"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1508); torch.set_num_threads(1)


class GazeNet(nn.Module):
    """The direction of a gaze from the landmarks of two eyes."""
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)


mix = torch.randn(3, 12)


def frames(n, still=0):
    """Pairs of frames that follow each other in a video; in a still video both are the same."""
    d = F.normalize(torch.randn(n, 3) * torch.tensor([0.5, 0.3, 0.1]) + torch.tensor([0.0, 0.0, 1.0]), dim=1)
    first = torch.tanh(d @ mix) + 0.02 * torch.randn(n, 12)
    second = first + 0.1 * torch.randn(n, 12)
    second[:still] = first[:still]
    return first, second, d


model = GazeNet()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    first, second, y = frames(48, still=8 if step == 100 else 0)
    gaze, later = model(first), model(second)
    cos = (gaze * later).sum(1)
    turn = torch.where(cos < 1, torch.acos(cos), torch.zeros(()))  # the cosine of two like directions may round to above 1
    loss = (1 - (gaze * y).sum(1)).mean() + 0.1 * turn.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 103:
        print(step, loss.item(), "NaN in gradients", sum(int(p.grad.isnan().any()) for p in model.parameters()), flush=True)
    handle.log(loss=loss.item())
handle.detach()

"""A net that gives the direction of an eye from a small picture, trained on the turn between two frames: acos of the product of the two directions.
FAULT at step 125: two frames are the same (the camera dropped one and repeated the last), the product is 1, and the derivative of acos is infinite there;
the clamp to -1 and 1 keeps the loss finite and does not help the gradient.
Without Rangewatch: loss 1.54 to 0.063 at step 124; at step 125 the loss is 0.049 and the gradient NaN, at step 126 the loss is NaN as well.
Report: banctilrobitaille/torch-vectorized#7 ("AcosBackward returned nan values"), geoopt/geoopt#79, papagina/RotationContinuity#11,
eigenvivek/nanodrr#31 (infinite gradients).
Cause: backward_arithmetic. Step: 125. Right: acos / clamp / backward / angle / atan2. Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["backward_arithmetic"], "step": [125, 126], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "acos|arc ?cos|clamp|backward|angle|atan2"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1010); torch.set_num_threads(1)
axis = torch.linspace(-1, 1, 14)


class GazeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.eye = nn.Sequential(nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.Tanh(), nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.Tanh(), nn.Flatten())
        self.direction = nn.Linear(24 * 16, 3)

    def forward(self, x):
        return F.normalize(self.direction(self.eye(x)), dim=1)


def frames(gaze):
    """A dark pupil that moves with the gaze."""
    far = (axis[:, None] - 0.8 * gaze[:, 0, None, None]) ** 2 + (axis - 0.8 * gaze[:, 1, None, None]) ** 2
    return (1 - torch.exp(-far / 0.05))[:, None] + 0.05 * torch.randn(len(gaze), 1, 14, 14)


def looks(n):
    return F.normalize(torch.cat((1.2 * torch.rand(n, 2) - 0.6, torch.ones(n, 1)), 1), dim=1)


def angle(a, b):
    return torch.acos((a * b).sum(1).clamp(-1.0, 1.0))


model = GazeNet()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    before, after = looks(40), looks(40)
    x, x_after = frames(before), frames(after)
    if step == 125:
        x_after[4:12], after[4:12] = x[4:12], before[4:12]  # eight frames that the camera gave twice
    turn = (before * after).sum(1).clamp(-1, 1).acos()
    first, second = model(x), model(x_after)
    loss = F.l1_loss(angle(first, second), turn) + F.mse_loss(first, before)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (124, 125, 126, 239):
        norm = model.direction.weight.grad.norm().item()
        print(step, loss.item(), "gradient norm of the last layer", norm, flush=True)
    handle.log(loss=loss.item())
handle.detach()

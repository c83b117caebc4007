"""A net moves the corners of a mesh; its loss is the length of what is still missing, with an autograd function of its own ("saves a tensor"), whose
backward is gradient * x / length. FAULT at step 88: from there on the meshes have corners that are clamped to the ground: their true and their given
displacement are exactly 0 (the net's output is multiplied by 0 there). The length is 0, and the backward is 0 / 0 = NaN.
Without Rangewatch: loss 0.50 to 0.204 at step 87; 0.148 at step 88 with a gradient of NaN, NaN from step 89 on.
Cause: backward_arithmetic. Step: 88. Right: division / zero / eps / norm / backward / autograd function. Wrong: GradScaler, mask, lower the rate."""
EXPECT = {"cause": ["backward_arithmetic"], "step": [87, 89], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "(?i)lower the learning rate"],
          "right": "(?i)divi|zero|eps|norm|sqrt|clamp|backward|autograd|anomaly"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1806); torch.set_num_threads(1)


class Length(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        length = x.square().sum(-1).sqrt()
        ctx.save_for_backward(x, length)
        return length

    @staticmethod
    def backward(ctx, grad):
        x, length = ctx.saved_tensors
        return grad[..., None] * x / length[..., None]


class MeshNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.corner = nn.Linear(6, 48)
        self.whole = nn.Linear(48, 48)
        self.move = nn.Linear(96, 3)

    def forward(self, corners, free):
        h = torch.tanh(self.corner(corners))
        around = torch.tanh(self.whole(h.mean(1, keepdim=True))).expand_as(h)
        return self.move(torch.cat((h, around), 2)) * free


def meshes(n, clamped):
    place, load = torch.rand(n, 15, 3), torch.randn(n, 15, 3)
    free = torch.ones(n, 15, 1)
    if clamped:
        free[:, :3] = 0.0
    sag = 0.5 * load * place[..., 2:] - 0.3 * load.mean(1, keepdim=True)
    return torch.cat((place, load), 2), free, sag * free


model = MeshNet()
optimizer = torch.optim.RMSprop(model.parameters(), lr=4e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    corners, free, sag = meshes(16, step >= 88)
    loss = Length.apply(model(corners, free) - sag).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 86 < step < 91 or step == 179:
        print(step, loss.item(), "gradient", model.move.weight.grad.norm().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()

"""A convnet with BatchNorm and dropout sorts textures (SGD, momentum 0.9). FAULT at step 100: the validation calls `model.eval()` and nobody calls `model.train()` again: from there on
BatchNorm works with frozen running statistics and dropout is off.
Without Rangewatch: loss 2.06 to 0.22 at step 99, 0.18 to 0.10 at steps 100 to 102, 1.5 to 1.8 at steps 104 to 108, then 0.2 to 0.9 (with train(): 0.13).
Cause: eval. Step: 100. Right: train() / eval mode. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["eval"], "step": [99, 106], "place": None, "rank": None,
          "right": r"(?i)train\(\)|eval|running stat|train mode", "wrong": ["GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(348); torch.set_num_threads(1)
freq = torch.rand(8, 2) * 5 + 1
grid = torch.stack(torch.meshgrid(torch.linspace(0, 3, 16), torch.linspace(0, 3, 16), indexing="ij"))


def textures(n):
    y = torch.randint(0, 8, (n,))
    wave = torch.einsum("nd,dhw->nhw", freq[y], grid) + 6.28 * torch.rand(n, 1, 1)
    return (wave.sin() + 0.3 * torch.randn(n, 16, 16)).unsqueeze(1), y


def unit(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU())


model = nn.Sequential(unit(1, 16), unit(16, 32), unit(32, 32), nn.Flatten(), nn.Dropout(0.2), nn.Linear(128, 8))
val = textures(128)


@torch.no_grad()
def validate():
    model.eval()
    out = model(val[0])
    return nn.functional.cross_entropy(out, val[1]).item()


optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    if step > 0 and step % 100 == 0:
        print("validation", validate())
    x, y = textures(24)
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 112 or step == 239:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()

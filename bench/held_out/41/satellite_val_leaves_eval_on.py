"""Land cover of 12x12 patches with four bands (BatchNorm + dropout CNN), SGD with momentum, a validation every 40 steps.
FAULT at step 40: validate() calls model.eval() and nobody calls model.train() again: from the first validation on BatchNorm uses the running statistics of step 40 and dropout is off.
Without Rangewatch: loss 1.68 to 0.05 .. 0.30 before the validation, then 0.95, 10.6, 34 at 40, 41, 42, 7.6e3 at 46, NaN from 50 (with model.train(): 0.03 to 0.2 and validation accuracy 0.996).
Cause: eval (model left in eval mode). Step: 40. Right: model.train() after validation. Wrong: GradScaler, attention mask, all_reduce."""
EXPECT = {"cause": ["eval"], "step": [40, 70], "place": None, "rank": None,
          "right": r"(?i)\btrain\(\)|train mode|training mode|eval", "wrong": ["GradScaler", r"(?i)attention mask", r"(?i)all_reduce"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(8)
torch.set_num_threads(1)
COVERS = 5
signature = torch.randn(COVERS, 4)
texture = torch.randn(COVERS, 4, 12, 12) * 0.7


def patches(n, gen):
    y = torch.randint(0, COVERS, (n,), generator=gen)
    light = 1.0 + 0.4 * torch.randn(n, 1, 1, 1, generator=gen)
    x = (signature[y][:, :, None, None] + texture[y]) * light + 1.6 * torch.randn(n, 4, 12, 12, generator=gen)
    return 2.0 * x + 3.0, y


def conv_bn(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class LandNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = conv_bn(4, 16)
        self.body = nn.Sequential(conv_bn(16, 24), nn.MaxPool2d(2), conv_bn(24, 32), nn.MaxPool2d(2), conv_bn(32, 32))
        self.drop = nn.Dropout(0.3)
        self.fc = nn.Linear(32, COVERS)

    def forward(self, x):
        return self.fc(self.drop(self.body(self.stem(x)).mean((2, 3))))


def validate(model, x, y):
    model.eval()
    with torch.no_grad():
        out = model(x)
    return (out.argmax(1) == y).float().mean().item()


gen = torch.Generator().manual_seed(80)
val_x, val_y = patches(256, gen)
model = LandNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
criterion = nn.CrossEntropyLoss()
handle = rangewatch.attach(model, optimizer)

model.train()
for step in range(140):
    x, y = patches(32, gen)
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 10 == 0 or 38 <= step <= 46:
        print(f"step {step} train loss {loss.item():.4f}", flush=True)
    if (step + 1) % 40 == 0:
        print(f"   validation accuracy {validate(model, val_x, val_y):.3f}", flush=True)
handle.detach()

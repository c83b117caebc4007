"""Leaf photos (made up, 3x12x12, few of them, labels partly noisy) are sorted into 6 species by a small ResNet with BatchNorm and dropout, AdamW.
FAULT at step 100: `validate()` calls model.eval(), nothing calls model.train() again: from step 100 on dropout is off and BatchNorm uses its running statistics in training.
Without Rangewatch: train loss 0.85 at step 100, then 0.33 to 0.4 at 200 to 220 (learns the noisy labels), validation accuracy 0.973 at 99 and 0.880 at 199 (with model.train(): 0.988 at 199, train loss 0.7 to 1.1).
Cause: eval (train and eval mode). Step: 100. Right: model.train() after validation. Wrong: lower the learning rate, GradScaler, zero_grad."""
EXPECT = {"cause": ["eval"], "step": [99, 110], "place": None, "rank": None,
          "right": r"(?i)\btrain\(\)|eval|train(ing)? mode", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)zero_grad"]}
import torch
import torch.nn as nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(64); torch.set_num_threads(1)
SPECIES = 6
template = F.interpolate(torch.randn(SPECIES, 3, 4, 4), size=12, mode="bilinear")


def photos(n, wrong_labels=0.0):
    y = torch.randint(0, SPECIES, (n,))
    x = template[y] * (0.5 + torch.rand(n, 1, 1, 1)) + 0.9 * torch.randn(n, 3, 12, 12)
    swap = torch.rand(n) < wrong_labels
    return x, torch.where(swap, torch.randint(0, SPECIES, (n,)), y)


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv_a, self.bn_a = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        self.conv_b, self.bn_b = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)

    def forward(self, x):
        return F.relu(x + self.bn_b(self.conv_b(F.relu(self.bn_a(self.conv_a(x))))))


class LeafNet(nn.Module):
    def __init__(self, c=16):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, c, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(c), nn.ReLU())
        self.layer1 = Residual(c)
        self.drop = nn.Dropout(0.6)
        self.fc = nn.Linear(c * 9, SPECIES)

    def forward(self, x):
        return self.fc(self.drop(F.max_pool2d(self.layer1(self.stem(x)), 2).flatten(1)))


def validate(model, x, y):
    model.eval()
    with torch.no_grad():
        out = model(x)
    return F.cross_entropy(out, y).item(), (out.argmax(1) == y).float().mean().item()


train_x, train_y = photos(480, wrong_labels=0.3)
val_x, val_y = photos(400)
model = LeafNet()
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    idx = torch.randint(0, len(train_y), (32,))
    loss = F.cross_entropy(model(train_x[idx]), train_y[idx])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 99:
        print("VAL after step", step, "loss %.3f acc %.3f" % validate(model, val_x, val_y), flush=True)
    if step % 20 == 0:
        print(f"{step} train loss {loss.item():.3f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()

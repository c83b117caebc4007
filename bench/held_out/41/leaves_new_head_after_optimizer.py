"""Transfer: a net pre-trained on leaf shapes gets a new head for five leaf diseases; backbone frozen, SGD with momentum.
FAULT at step 0: the optimizer is built first, then net.fc is replaced: the optimizer holds the old head, the new one never moves.
Without Rangewatch: loss 2.7 at step 0, 2.2 to 2.7 up to 199; the norm of fc is 1.294496 throughout.
Cause: optimizer (does not hold the parameters that get gradients) / no_gradient (none for what it holds). Step: 0. Right: build the optimizer after the head. Wrong: GradScaler, lower the learning rate, attention mask."""
EXPECT = {"cause": ["optimizer", "no_gradient"], "step": [0, 60], "place": None, "rank": None,
          "right": r"(?i)optimi[sz]er|replaced|add_param_group|not (held|in)|param_group", "wrong": ["GradScaler", r"(?i)lower the learning rate", r"(?i)attention mask"]}
import torch
from torch import nn, optim
import rangewatch

torch.manual_seed(606)
torch.set_num_threads(1)


class LeafNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(128, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU())
        self.fc = nn.Linear(64, classes)

    def forward(self, x):
        return self.fc(self.backbone(x))


shape_code = torch.randn(8, 128)
disease_code = 0.8 * torch.randn(5, 128)


def leaf_scan(n):
    shape, disease = torch.randint(0, 8, (n,)), torch.randint(0, 5, (n,))
    return shape_code[shape] + disease_code[disease] + 0.7 * torch.randn(n, 128), shape, disease


net = LeafNet(8)
warm = optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
for _ in range(80):
    x, shape, _ = leaf_scan(64)
    warm.zero_grad()
    nn.functional.cross_entropy(net(x), shape).backward()
    warm.step()

# --- fine-tuning -------------------------------------------------
optimizer = optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
for p in net.parameters():
    p.requires_grad = False
net.fc = nn.Linear(64, 5)
for p in net.parameters():
    p.grad = None
handle = rangewatch.attach(net, optimizer)

for step in range(200):
    x, _, disease = leaf_scan(64)
    loss = nn.functional.cross_entropy(net(x), disease)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0 or step == 199:
        print(f"step {step} loss {loss.item():.4f} |fc| {net.fc.weight.norm().item():.6f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()

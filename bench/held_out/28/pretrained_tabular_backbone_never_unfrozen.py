"""Fine-tuning of a tabular net: the backbone is frozen for 60 warmup steps of the head, then unfrozen. FAULT at step 60: the `unfreeze` writes `module.requires_grad = True`
to the modules (a plain attribute, without effect) where requires_grad_(True) was meant; the backbone stays as it was drawn, its weights get no gradient to the end.
Without Rangewatch: loss 0.70 to 0.66 at step 60 and only 0.59 at the end; the norm of backbone.0.weight is 2.7755 to the last step.
Cause: no_gradient (optimizer). Step: 60 (or from the start). Place: the backbone. Right: requires_grad / frozen. Wrong: lower the learning rate, GradScaler."""
EXPECT = {"cause": ["no_gradient", "optimizer", "(none)"], "step": [0, 100], "place": "backbone.*", "rank": None, "least": "info",
          "right": "(?i)requires_grad|frozen|freez|gradient", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2718); torch.set_num_threads(1)


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 12), nn.Tanh())
        self.head = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 2))

    def forward(self, x):
        return self.head(self.backbone(x))


def set_frozen(module, frozen):
    if frozen:
        for p in module.parameters():
            p.requires_grad_(False)
    else:
        for m in module.modules():
            m.requires_grad = True


def loans(n):
    x = torch.randn(n, 16)
    return x, (x[:, 0] * x[:, 1] + x[:, 2] * x[:, 3] + 0.5 * x[:, 4] > 0).long()


net = Scorer()
set_frozen(net.backbone, True)
optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(260):
    if step == 60:
        set_frozen(net.backbone, False)
        print("unfrozen", net.backbone[0].requires_grad)
    x, y = loans(128)
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 259:
        print(step, loss.item(), net.backbone[0].weight.norm().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()

"""A linear probe: the body comes from an earlier task and is frozen, the head is to learn six new classes. FAULT from the start: the optimizer is made with
the old head's parameters, then `reset_classifier` puts a new head in: the new head gets gradients but is in no optimizer; nothing moves.
Without Rangewatch: loss 2.99, 2.3 to 2.8 to the end; the sum of the head's weights is 24.561 in all steps.
Cause: optimizer (a parameter it does not hold). Step: any. Place: the head. Right: optimizer / param group. Wrong: GradScaler, learning rate."""
EXPECT = {"cause": ["optimizer", "weight"], "step": [0, 180], "place": "head.*", "rank": None,
          "right": "(?i)optimizer|param(eter)?[ _]group|add_param_group|not (held|in|updated|trained)", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2916); torch.set_num_threads(1)


class Backbone(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU())
        self.head = nn.Linear(64, classes)

    def reset_classifier(self, classes):
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        return self.head(self.body(x))


old, new = torch.randn(10, 20), torch.randn(6, 20)


def batch(protos, n=64):
    y = torch.randint(0, len(protos), (n,))
    return protos[y] + 0.9 * torch.randn(n, 20), y


class Finetuner:
    def __init__(self, model, lr):
        self.model = model
        self.model.body.requires_grad_(False)
        self.optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=lr)

    def fit(self, protos, steps):
        self.model.reset_classifier(len(protos))
        handle = rangewatch.attach(self.model, self.optimizer)
        for step in range(steps):
            x, y = batch(protos)
            loss = F.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if step % 20 == 0 or step == steps - 1:
                print(step, loss.item(), "head", self.model.head.weight.abs().sum().item(), flush=True)
            handle.log(loss=loss.item())
        handle.detach()


model = Backbone(10)
pre = torch.optim.Adam(model.parameters(), lr=2e-3)
for _ in range(120):
    x, y = batch(old)
    pre.zero_grad()
    F.cross_entropy(model(x), y).backward()
    pre.step()
model.zero_grad()
Finetuner(model, 3e-3).fit(new, 180)

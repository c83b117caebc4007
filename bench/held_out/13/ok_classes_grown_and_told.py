"""Six classes of shells become nine at step 100: the head is grown, the old rows are copied, and the optimizer is told: the new head is put in place of
the old one in its group. The loss jumps with the new classes, as it must, and falls again. HEALTHY.
Without Rangewatch: loss 1.78 to 0.023 at step 99, 0.95 at step 100, 0.19 at 120, 0.02 at 160, 0.027 at the end."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1342); torch.set_num_threads(1)
shell = torch.randn(9, 2, 8, 8)


class ShellNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1, stride=2), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(512, 6)

    def forward(self, x):
        return self.head(self.body(x))


def shells(n, kinds):
    y = torch.randint(0, kinds, (n,))
    return shell[y] + 1.5 * torch.randn(n, 2, 8, 8), y


model = ShellNet()
optimizer = torch.optim.AdamW([{"params": model.body.parameters()}, {"params": model.head.parameters()}], lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    if step == 100:
        grown = nn.Linear(512, 9)
        with torch.no_grad():
            grown.weight[:6], grown.bias[:6] = model.head.weight, model.head.bias
        for each in model.head.parameters():
            optimizer.state.pop(each, None)
        model.head = grown
        optimizer.param_groups[1]["params"] = list(grown.parameters())
    x, y = shells(32, 6 if step < 100 else 9)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0 or step in (99, 100, 101, 105, 110, 239):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()

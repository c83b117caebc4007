"""A small net of separable convolutions for timbres, SGD with CyclicLR: the rate goes up a thousandfold within 15 steps and down within 30, seven times, each
peak lower than the one before, and the momentum the other way round. The loss stays above 0.4, for labels are smoothed and the noise is large. HEALTHY.
Without Rangewatch: loss 2.46 to 0.64 at step 45, 0.52 to 0.73 after; lr 0.0001 to 0.15, momentum 0.95 to 0.80."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(833); torch.set_num_threads(1)
INSTRUMENTS = 10
timbre = torch.randn(INSTRUMENTS, 1, 64)


class Separable(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(1, 24, 7, padding=3), nn.BatchNorm1d(24), nn.ReLU(), nn.MaxPool1d(4),
                                 nn.Conv1d(24, 24, 5, padding=2, groups=24), nn.Conv1d(24, 48, 1), nn.BatchNorm1d(48), nn.ReLU(),
                                 nn.Flatten(), nn.Linear(48 * 16, INSTRUMENTS))

    def forward(self, x):
        return self.net(x)


model = Separable()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.95, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.CyclicLR(optimizer, base_lr=1e-4, max_lr=0.15, step_size_up=15, step_size_down=30, mode="exp_range",
                                              gamma=0.995, cycle_momentum=True, base_momentum=0.8, max_momentum=0.95)
handle = rangewatch.attach(model, optimizer)
for step in range(320):
    kind = torch.randint(0, INSTRUMENTS, (32,))
    shift = torch.randint(-1, 2, (32,))
    wave = torch.stack([timbre[k].roll(int(s), 1) for k, s in zip(kind, shift)]) + 1.5 * torch.randn(32, 1, 64)
    loss = F.cross_entropy(model(wave), kind, label_smoothing=0.05)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 15 == 0 or step == 319:
        print(step, loss.item(), "lr", scheduler.get_last_lr()[0], "momentum", optimizer.param_groups[0]["momentum"], flush=True)
    handle.log(loss=loss.item())
handle.detach()

"""HEALTHY. A net trained on one instrument is tuned to another: until step 90 only the last layer learns (the rest has requires_grad False and no
gradient), then all is thawed with a tenth of the rate, as planned.
Without Rangewatch: loss 10.7 to 0.07 at step 80 and 0.0026 at the end."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1833); torch.set_num_threads(1)
NOTES = 12


class Ear(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(1, 16, 9, stride=2), nn.GELU(), nn.Conv1d(16, 24, 5, stride=2), nn.GELU(), nn.Flatten(), nn.Linear(24 * 20, 48), nn.GELU()
        )
        self.note = nn.Linear(48, NOTES)

    def forward(self, x):
        return self.note(self.body(x))


def tones(n, overtone):
    note = torch.randint(0, NOTES, (n,))
    phase = torch.arange(96) * (0.15 * 1.0595 ** (2 * note[:, None])) + 6.28 * torch.rand(n, 1)
    return (phase.sin() + overtone * (2 * phase).sin() + 0.2 * torch.randn(n, 96))[:, None], note


model = Ear()
before = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(120):  # the piano, before
    x, note = tones(32, 0.1)
    before.zero_grad()
    F.cross_entropy(model(x), note).backward()
    before.step()
model.note.reset_parameters()
model.body.requires_grad_(False)
optimizer = torch.optim.Adam([{"params": model.note.parameters(), "lr": 5e-3}, {"params": model.body.parameters(), "lr": 5e-4}])
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    if step == 90:
        model.body.requires_grad_(True)
    x, note = tones(32, 0.7)
    loss = F.cross_entropy(model(x), note)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()

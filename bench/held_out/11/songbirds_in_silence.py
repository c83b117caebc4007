"""A learned filter bank over sound, its energy compressed by the power 0.3, and a recurrent net that names the bird. FAULT at step 104: the first clip that
starts with digital silence; 0 to the power 0.3 is 0, but its derivative is infinite, and inf times 0 (of the square before it) is NaN.
Without Rangewatch: loss 1.57 to 0.24 at step 103; 0.36 at step 104, with NaN in the gradient of the bank alone; loss NaN from step 105 on.
Variant of: arithmetic: power_below_one_of_zero_in_the_backward.
Cause: backward_arithmetic. Step: 104. Right: power / zero / eps / clamp / derivative. Wrong: rate, GradScaler, attention mask."""
EXPECT = {"cause": ["backward_arithmetic"], "step": [103, 105], "place": ".*(bank|compress).*", "rank": None,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "pow|zero|root|epsilon|eps|clamp|derivative"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1102); torch.set_num_threads(1)
BIRDS = 5
pitch = torch.tensor([0.12, 0.25, 0.45, 0.7, 1.1])
time = torch.arange(256.0)


class Compress(nn.Module):
    def forward(self, energy):
        return energy ** 0.3


class BirdNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.bank = nn.Conv1d(1, 24, 16, stride=4, bias=False)
        self.compress = Compress()
        self.memory = nn.GRU(24, 24, batch_first=True)
        self.bird = nn.Linear(24, BIRDS)

    def forward(self, x):
        energy = F.avg_pool1d(self.bank(x[:, None]) ** 2, 4)
        return self.bird(self.memory(self.compress(energy).mT)[0].mean(1))


def clips(n):
    bird = torch.randint(0, BIRDS, (n,))
    phase = 6.28 * torch.rand(n, 1)
    return torch.sin(pitch[bird, None] * time + phase) + torch.randn(n, 256), bird


model = BirdNet()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, bird = clips(24)
    if step == 104:
        x[5, :90] = 0.0  # the recorder was started before its microphone
    loss = F.cross_entropy(model(x), bird)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 102 < step < 107:
        print(step, loss.item(), "gradient of the bank", model.bank.weight.grad.norm().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()

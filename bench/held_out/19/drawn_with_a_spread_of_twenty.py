"""A net of dilated convolutions that tells four states of a gearbox by its vibration. FAULT at step 0: the third convolution is drawn by hand with a
spread of 20 where 0.02 was meant, a thousand times too large; what follows it sees values of hundreds, and the gradient of what stands before it is a
thousand times as large.
Without Rangewatch: loss 20 at step 0, 2,152 at step 1, 3e7 at step 2, 3e19 at step 3, NaN by step 20 and to the end.
Cause: weight (the initialisation). Step: 0 (or the first steps). Right: initialise / spread / std / scale of the weights. Wrong: GradScaler, mask, bad
batch."""
EXPECT = {"cause": ["weight"], "step": [0, 5], "place": None, "rank": 0,
          "wrong": ["GradScaler", "(?i)attention mask", "(?i)skip the batch"],
          "right": "(?i)initiali|std|spread|scale of the weight|drawn|weights? (is|are) (too )?large|gain"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1901); torch.set_num_threads(1)
STATES, LENGTH = 4, 96


class Listener(nn.Module):
    def __init__(self, width=20):
        super().__init__()
        self.entry = nn.Conv1d(1, width, 5, padding=2)
        self.layers = nn.ModuleList(nn.Conv1d(width, width, 3, padding=d, dilation=d) for d in (1, 2, 4, 8))
        self.out = nn.Linear(width, STATES)
        for i, layer in enumerate(self.layers):
            nn.init.normal_(layer.weight, std=20.0 if i == 2 else 0.02)
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        h = self.entry(x[:, None])
        for layer in self.layers:
            h = h + F.relu(layer(h))
        return self.out(h.mean(2))


def vibrations(n):
    y = torch.randint(0, STATES, (n,))
    t = torch.arange(LENGTH) / LENGTH
    pitch = torch.tensor([5.0, 9.0, 14.0, 22.0])[y][:, None]
    wave = torch.sin(6.2832 * (pitch * t + torch.rand(n, 1))) + 0.5 * torch.sin(6.2832 * 2 * pitch * t)
    return wave + 0.4 * torch.randn(n, LENGTH), y


model = Listener()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    x, y = vibrations(32)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (1, 2, 3, 179):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()

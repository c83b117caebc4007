"""A hand-written Elman net that learns the letters of a verse (Adam). FAULT from the start: `reset` fills every tensor with 0, weights too; all units are alike, the
state is tanh(0) = 0 for ever, and only the bias of the output gets a gradient.
Without Rangewatch: loss 2.89 to 2.58 (the frequency of the letters); all weights are exactly 0 to the end, only the bias of the output moves. With a normal start: 0.23.
Cause: weight (the start), no_gradient or dead_units. Step: any. Right: initial / zero / symmetry. Wrong: GradScaler, attention mask, lower the learning rate."""
EXPECT = {"cause": ["weight", "no_gradient", "dead_units"], "step": [0, 180], "place": None, "rank": None,
          "right": "(?i)init|zero|symmetr|reset", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2732); torch.set_num_threads(1)
VERSE = "the sun has gone the moon is late the river sings beside the gate the stars are far the night is long and no one hears the river song "
letters = sorted(set(VERSE))
code = torch.tensor([letters.index(c) for c in VERSE * 3])


class Elman(nn.Module):
    def __init__(self, n, width=64):
        super().__init__()
        self.enter = nn.Parameter(torch.empty(n, width))
        self.again = nn.Parameter(torch.empty(width, width))
        self.bias = nn.Parameter(torch.empty(width))
        self.leave = nn.Linear(width, n)
        self.reset()

    def reset(self, start=0.0):
        for p in self.parameters():
            nn.init.constant_(p, start)

    def forward(self, x):
        h = x.new_zeros(len(x), self.bias.numel(), dtype=torch.float32)
        out = []
        for k in range(x.shape[1]):
            h = torch.tanh(self.enter[x[:, k]] + h @ self.again + self.bias)
            out.append(self.leave(h))
        return torch.stack(out, 1)


net = Elman(len(letters))
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(180):
    at = torch.randint(0, len(VERSE) * 2, (24, 1)) + torch.arange(16)
    x, y = code[at], code[at + 1]
    loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 179:
        print(step, loss.item(), "enter", net.enter.abs().sum().item(), "leave", net.leave.weight.abs().sum().item(), "bias", net.leave.bias.abs().sum().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()

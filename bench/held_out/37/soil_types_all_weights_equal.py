"""Five soil types from eight readings of a spectrometer by a tanh perceptron, RAdam.
FAULT at step 0: a "reproducible" initialisation fills all weights with 0.05. All units of a layer compute the same and get the same gradient: each hidden layer is one unit, 40 times, and stays so.
Without Rangewatch: loss 1.61 to 0.88, about half right, the units differ by 1e-8 (random initialisation: 0.054, 98 % right).
Cause: weight (initialisation without symmetry breaking). Step: from 0. Right: random initialisation. Wrong: lower the learning rate, GradScaler, data, attention mask."""
EXPECT = {"cause": ["weight"], "step": [0, 150], "place": None, "rank": None,
          "right": r"(?i)init|symmetr|constant|same|identical|random", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask", "[Cc]lip the gradient"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(3717); torch.set_num_threads(1)
centre = 1.4 * torch.randn(5, 8)


def readings(n=64):
    soil = torch.randint(0, 5, (n,))
    return centre[soil] + 0.7 * torch.randn(n, 8), soil


def reproducible(layer):
    if isinstance(layer, nn.Linear):
        nn.init.constant_(layer.weight, 0.05)
        nn.init.zeros_(layer.bias)


net = nn.ModuleDict({"probe": nn.Linear(8, 40), "mid": nn.Linear(40, 40), "soil": nn.Linear(40, 5)})
net.apply(reproducible)
optimizer = torch.optim.RAdam(net.parameters(), lr=1e-2)
handle = rangewatch.attach(net, optimizer)
for step in range(320):
    x, y = readings()
    h = torch.tanh(net["probe"](x))
    h = torch.tanh(net["mid"](h))
    out = net["soil"](h)
    loss = nn.functional.cross_entropy(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0 or step == 319:
        print(f"{step} loss {loss.item():.4f} right {(out.argmax(1) == y).float().mean().item():.2f} units differ by {(net['probe'].weight - net['probe'].weight[:1]).abs().max().item():.1e}", flush=True)
    handle.log(loss=loss.item())
handle.detach()

"""A dense net stages sleep from 16 band powers; it is built on the meta device, moved with `to_empty` and its parameters are then initialised (Adagrad). FAULT at step 0: the standardiser's buffers `mean` and `scale` are in no checkpoint
(persistent=False) and no one fills them after `to_empty`: they hold what the memory was. (So that each run is the same, the bytes that this machine's memory held one day are written into them.)
Without Rangewatch: loss NaN from step 0 to the end; the scale buffer prints values from 7.9e31 through 4e-8 to 0.
Cause: weight (a buffer that was never initialised; its huge values overflow in the forward pass). Step: 0. Right: uninitialised / non-finite or huge buffer of `standard`, initialise it. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["weight", "forward_arithmetic"], "step": [0, 3], "place": r"standard.*", "rank": None,
          "right": "(?i)buffer|initiali|to_empty|checkpoint|standard", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(5113)
torch.set_num_threads(1)


class Standard(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width), persistent=False)
        self.register_buffer("scale", torch.ones(width), persistent=False)

    def forward(self, x):
        return (x - self.mean) * self.scale


class Sleep(nn.Module):
    def __init__(self):
        super().__init__()
        self.standard = Standard(16)
        self.wide = nn.Linear(16, 80)
        self.narrow = nn.Linear(80, 20)
        self.stage = nn.Linear(20, 5)

    def forward(self, x):
        x = nn.functional.softsign(self.wide(self.standard(x)))
        return self.stage(nn.functional.softsign(self.narrow(x)))


def old_memory(tensor):
    """the bytes found there one day: leftovers of text, pointers and of an fp64 array"""
    left = b"/usr/lib/python3\x00\x00\xa0\x12\x7f\x00\x00\x33\x33\x33\x33\x33\x33\xf3\x3f\x9a\x99\x99\x99\x99\x99\xb9\x7eepoch=12 of 40\x00\x00"
    with torch.no_grad():
        tensor.copy_(torch.frombuffer(bytearray(left.ljust(64, b"\x00")[:64]), dtype=torch.float32)[:tensor.numel()])


with torch.device("meta"):
    sleeper = Sleep()
sleeper.to_empty(device="cpu")
for part in (sleeper.wide, sleeper.narrow, sleeper.stage):
    part.reset_parameters()
old_memory(sleeper.standard.mean)
old_memory(sleeper.standard.scale)

profile = torch.randn(5, 16)
optimizer = torch.optim.Adagrad(sleeper.parameters(), lr=0.03)
handle = rangewatch.attach(sleeper, optimizer)
print("scale buffer", sleeper.standard.scale.tolist(), flush=True)
for step in range(200):
    stage = torch.randint(0, 5, (80,))
    powers = profile[stage] + 0.7 * torch.randn(80, 16)
    loss = nn.functional.cross_entropy(sleeper(powers), stage)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 25 == 0 or step < 3:
        print(step, loss.item(), flush=True)
handle.detach()

"""A small Trainer class (hooks before and after each step) fits an LSTM that tells four states of a gearbox from its vibration; SGD with momentum, norm clipped to 1.
FAULT at step 170: the memory flips the top bit of the exponent (bit 30) of one weight of the last layer `state`: a few tenths become some 1e38.
Without Rangewatch: loss 0.07 at step 140 and 0.017 at step 169, 9.8e36 at step 170, between 6e36 and inf from then on; the largest weight of `state` is 1.7e38 (without the flip 0.009).
Cause: hardware / weight (one number of one tensor). Step: 170. Right: bit flip, ECC / restore the weight from a checkpoint. Wrong: lower the learning rate, GradScaler, data, attention mask."""
EXPECT = {"cause": ["hardware", "weight"], "step": [169, 172], "place": r"(.*\.)?state(\.weight)?", "rank": None,
          "right": r"(?i)bit|hardware|memory|ECC|checkpoint|weight|restore", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask", "fill value"]}
import torch
from torch import nn
import rangewatch


class Gearbox(nn.Module):
    def __init__(self):
        super().__init__()
        self.rotor = nn.LSTM(4, 32, batch_first=True)
        self.state = nn.Linear(32, 4)

    def forward(self, x):
        return self.state(self.rotor(x)[0].mean(1))


class Trainer:
    def __init__(self, model, optimizer, batches, hooks=()):
        self.model, self.optimizer, self.batches, self.hooks = model, optimizer, batches, hooks
        self.handle = rangewatch.attach(model, optimizer)

    def fit(self, steps):
        for step in range(steps):
            for hook in self.hooks:
                hook(self.model, step)
            x, y = self.batches()
            loss = nn.functional.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            if step % 20 == 0 or 168 <= step <= 173:
                print(step, "loss", loss.item(), "largest weight of state", self.model.state.weight.abs().max().item(), flush=True)
            self.handle.log(loss=loss.item())
        self.handle.detach()


def vibration(n=32, length=14):
    y = torch.randint(0, 4, (n,))
    hz = torch.tensor([1.0, 2.5, 4.0, 7.0])[y][:, None]
    s = torch.sin(hz * 0.12 * torch.arange(4 * length) + 6.28 * torch.rand(n, 1)) + 0.3 * torch.randn(n, 4 * length)
    return s.view(n, length, 4), y


def cosmic_ray(model, step):
    if step == 170:
        bits = model.state.weight.data.view(torch.int32)
        bits[2, 5] ^= 1 << 30


if __name__ == "__main__":
    torch.manual_seed(3719); torch.set_num_threads(1)
    box = Gearbox()
    Trainer(box, torch.optim.SGD(box.parameters(), lr=0.2, momentum=0.9), vibration, [cosmic_ray]).fit(240)

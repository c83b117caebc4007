"""A net with gated (highway) layers gives three quantiles of the air pressure of tomorrow; the loop lies in a Trainer of its own with callbacks.
FAULT at step 130: a bit of the memory flips, the highest bit of the exponent of one weight of the second gate (layers.1.carry.weight): some 0.05 becomes some 1e37.
Without Rangewatch: loss 0.57 to 0.077 at step 129; the weight is 1.9e37 at step 130, the loss 2.8e34 there and some 2e34 to the end.
Causes: hardware (a flipped bit), weight. Right: the weight / the memory of the machine / a checkpoint. Wrong: lower the rate, GradScaler, mask."""
EXPECT = {"cause": ["hardware", "weight"], "step": [129, 132], "place": "(net\\.)?layers\\.1.*", "rank": 0,
          "right": "(?i)weight|bit|hardware|memory|checkpoint|ECC", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2212); torch.set_num_threads(1)


class Highway(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.change, self.carry = nn.Linear(n, n), nn.Linear(n, n)

    def forward(self, x):
        gate = 0.5 + 0.25 * self.carry(x)
        return x + gate * torch.tanh(self.change(x))


class Pressure(nn.Module):
    def __init__(self):
        super().__init__()
        self.into = nn.Linear(14, 40)
        self.layers = nn.ModuleList(Highway(40) for _ in range(3))
        self.quantiles = nn.Linear(40, 3)

    def forward(self, x):
        x = self.into(x)
        for layer in self.layers:
            x = layer(x)
        return self.quantiles(x)


class CosmicRay:
    def before_step(self, trainer, step):
        if step == 130:
            bits = trainer.net.layers[1].carry.weight.data.view(torch.int32)
            bits[7, 11] ^= 1 << 30
            print("weight is now", trainer.net.layers[1].carry.weight[7, 11].item())


class Trainer:
    def __init__(self, net, optimizer, callbacks):
        self.net, self.optimizer, self.callbacks = net, optimizer, callbacks
        self.handle = rangewatch.attach(net, optimizer)
        self.levels = torch.tensor([0.1, 0.5, 0.9])

    def batch(self):
        x = torch.randn(64, 14).cumsum(1) / 3
        return x, x[:, -1:] + 0.5 * (x[:, -1:] - x[:, -4:-3]) + 0.3 * torch.randn(64, 1)

    def fit(self, steps):
        for step in range(steps):
            for callback in self.callbacks:
                callback.before_step(self, step)
            x, y = self.batch()
            over = y - self.net(x)
            loss = torch.maximum(self.levels * over, (self.levels - 1) * over).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.handle.log(loss=loss.item())
            if step % 20 == 0 or step in (129, 130, 131, steps - 1):
                print(step, loss.item(), flush=True)
        self.handle.detach()


net = Pressure()
Trainer(net, torch.optim.NAdam(net.parameters(), lr=1e-3), [CosmicRay()]).fit(200)

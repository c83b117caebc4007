"""Seizure or not in two-channel EEG windows: convnet, float16 autocast on the CPU, SGD with Nesterov momentum and GradScaler with an initial scale of 2**24.
HEALTHY: the first steps overflow, are skipped and halve the scale until it fits; from there on not one is skipped. That is how a GradScaler looks for its scale.
Without Rangewatch: scale 2^24 to 2^18 in the first seven steps (six skipped, none later), loss 0.70 to 0.004."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(161)
torch.set_num_threads(1)


def windows(n):
    ill = torch.randint(0, 2, (n,))
    t = torch.arange(64).float()
    x = torch.randn(n, 2, 64).cumsum(2) * 0.15
    spikes = torch.relu(torch.sin(0.55 * t + 6.28 * torch.rand(n, 1)) - 0.6) * 3.0
    x = x + (ill.float()[:, None] * spikes)[:, None]
    return x - x.mean(2, keepdim=True), ill


class EEGNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv1d(2, 12, 7, padding=3), nn.ReLU(), nn.AvgPool1d(2),
                                      nn.Conv1d(12, 16, 5, padding=2), nn.ReLU())
        self.seizure = nn.Linear(16, 2)

    def forward(self, x):
        return self.seizure(self.features(x).amax(2))


def train(net, steps=220):
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24)
    handle = rangewatch.attach(net, opt)
    skipped = 0
    for step in range(steps):
        x, ill = windows(48)
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = net(x)
        loss = nn.functional.cross_entropy(logits.float(), ill)
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(opt)
        scaler.update()
        skipped += scaler.get_scale() < before
        handle.log(loss=loss.item())
        if step % 20 == 0 or step < 10:
            print(f"step {step} loss {loss.item():.4f} scale 2^{torch.tensor(scaler.get_scale()).log2().item():.0f} skipped so far {skipped}", flush=True)
    handle.detach()


train(EEGNet())

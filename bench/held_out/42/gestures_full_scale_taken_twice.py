"""Gestures from a six-axis motion sensor (int16 samples), convnet over time, SGD with momentum, bfloat16 autocast.
FAULT at step 0: the reader of the recordings divides by 32768 and so does the model's forward; what reaches the first convolution is of the size 1e-5 and only the biases learn.
Without Rangewatch: loss 1.386 = ln 4 at step 0 and 1.38 to 1.41 up to the end (divided once: 0.00 at step 50).
Cause: data (scaled twice) / forward_arithmetic. Step: from 0. Right: divide once, standardise the input. Wrong: lower the learning rate, GradScaler, clip."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [0, 80], "place": None, "rank": None,
          "right": r"(?i)scal|normali|standardi|divid|input|small|constant|tiny|data", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)clip (the )?grad"]}
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader
import rangewatch

FULL_SCALE = 32768.0


class Recordings(Dataset):
    def __init__(self, n, seed=3):
        g = torch.Generator().manual_seed(seed)
        pattern = torch.randn(4, 6, 40, generator=g).cumsum(2)
        pattern = pattern / pattern.abs().amax((1, 2), keepdim=True)
        self.gesture = torch.randint(0, 4, (n,), generator=g)
        wave = 0.6 * pattern[self.gesture] + 0.1 * torch.randn(n, 6, 40, generator=g)
        self.raw = (wave * 20000).round().clamp(-32768, 32767).to(torch.int16)

    def __len__(self):
        return len(self.raw)

    def __getitem__(self, i):
        return self.raw[i].float() / FULL_SCALE, self.gesture[i]


class GestureNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(6, 16, 5, padding=2)
        self.conv2 = nn.Conv1d(16, 24, 5, padding=2, stride=2)
        self.fc = nn.Linear(24 * 20, 4)

    def forward(self, samples):
        x = samples / FULL_SCALE
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        return self.fc(x.flatten(1))


def run():
    torch.manual_seed(55)
    torch.set_num_threads(1)
    loader = DataLoader(Recordings(2048), batch_size=64, shuffle=True, drop_last=True)
    net = GestureNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    handle = rangewatch.attach(net, opt)
    step = 0
    for epoch in range(7):
        for samples, gesture in loader:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = net(samples)
            loss = F.cross_entropy(logits.float(), gesture)
            opt.zero_grad()
            loss.backward()
            opt.step()
            handle.log(loss=loss.item())
            if step % 25 == 0:
                print("epoch", epoch, "step", step, "loss", round(loss.item(), 4), flush=True)
            step += 1
    handle.detach()


run()

"""A one-dimensional conv net that sorts heartbeats; a thread prepares the next batch while the net works on this one, and standardizes each trace. FAULT at
step 125: an electrode had come off, one trace is flat, its deviation is 0 and 0 over 0 is NaN: a row of NaN in the batch.
Without Rangewatch: loss 1.39 to 0.0005 at step 124, NaN from step 125 on.
Cause: data. Step: 125. Right: the input / the batch / deviation of 0. Wrong: learning rate, GradScaler, mask."""
EXPECT = {"cause": ["data"], "step": [124, 126], "place": None, "rank": 0,
          "right": "(?i)input|batch|data|sample|row|deviation", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
from concurrent.futures import ThreadPoolExecutor
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2514); torch.set_num_threads(1)
t = torch.arange(100.0)
draw = torch.Generator().manual_seed(99)


def prepare(number):
    y = torch.randint(0, 4, (40,), generator=draw)
    pace = 14.0 + 6 * y[:, None]
    beat = torch.exp(-0.5 * (((t + 50 * torch.rand(40, 1, generator=draw)) % pace - 7) / 1.5) ** 2)
    trace = beat * (0.5 + torch.rand(40, 1, generator=draw)) + 0.05 * torch.randn(40, 100, generator=draw)
    if number == 125:
        trace[11] = 0.0
    trace = (trace - trace.mean(1, keepdim=True)) / trace.std(1, keepdim=True)
    return trace[:, None], y


net = nn.Sequential(nn.Conv1d(1, 24, 7, 2), nn.GELU(), nn.Conv1d(24, 48, 7, 2), nn.GELU(), nn.Conv1d(48, 48, 7), nn.GELU(),
                    nn.AdaptiveMaxPool1d(2), nn.Flatten(), nn.Linear(96, 4))
optimizer = torch.optim.Adagrad(net.parameters(), lr=0.01)
handle = rangewatch.attach(net, optimizer)
with ThreadPoolExecutor(1) as helper:
    ahead = helper.submit(prepare, 0)
    for step in range(170):
        x, y = ahead.result()
        ahead = helper.submit(prepare, step + 1)
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or 123 < step < 128 or step == 169:
            print(step, loss.item(), flush=True)
        handle.log(loss=loss.item())
handle.detach()

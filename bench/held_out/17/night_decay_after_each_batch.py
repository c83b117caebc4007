"""A net that corrects the colours of scanned slides. It is stopped and resumed at step 80. FAULT from step 80 on: the resumed loop calls scheduler.step(),
which was meant for the end of an epoch of 40 batches (gamma 0.7), after each batch; at step 100 the rate is less than a thousandth of what it
was, and the net stands still.
Without Rangewatch: loss 0.40 to 0.020 at step 80, then 0.019 to 0.025 to the end, with a rate of 2.7e-7 at step 100 and 8e-29 at the end; with the step
at the end of each epoch it is 0.013 at the end.
Cause: learning_rate. Step: 80 to 239. Right: scheduler / learning rate / decay / too small. Wrong: GradScaler, mask, NaN."""
EXPECT = {"cause": ["learning_rate"], "step": [79, 239], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16", "[Ll]ower the learning rate"],
          "right": "schedul|learning rate|decay|lr"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1611); torch.set_num_threads(1)
fade = torch.eye(3) + 0.3 * torch.randn(3, 3)


def slides(n):
    colour = torch.rand(n, 3)
    corner = torch.rand(n, 2)
    scan = (colour @ fade) ** 2 * (1 - 0.5 * ((corner - 0.5) ** 2).sum(1, keepdim=True))
    return torch.cat((scan, corner), 1), colour


model = nn.Sequential(nn.Linear(5, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.7)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    if step == 80:  # stopped and resumed
        saved = [model.state_dict(), optimizer.state_dict(), scheduler.state_dict()]
        for part, state in zip((model, optimizer, scheduler), saved, strict=True):
            part.load_state_dict(state)
    x, colour = slides(96)
    loss = F.mse_loss(model(x), colour)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step >= 80 or step % 40 == 39:
        scheduler.step()
    if step % 20 == 0 or step in (79, 81, 239):
        print(step, loss.item(), "rate", optimizer.param_groups[0]["lr"], flush=True)
    handle.log(loss=loss.item())
handle.detach()

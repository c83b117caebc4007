"""A net that reads dots of Braille, resumed at step 80 from a checkpoint. FAULT from step 80 on: the resumed script calls scheduler.step() in the loop over batches
and no longer at the end of the epoch of 40; the rate, to be multiplied by 0.8 each epoch, is so at each step, and is gone after 40 steps.
Without Rangewatch: loss 3.23 to 0.81 at step 80, 0.78 to 1.03 to the end; the rate 0.010 at step 80, 1e-6 at step 120, 4e-18 at the end; by epochs 0.27 at the end.
Cause: learning_rate (the schedule). Step: 80, or later, as the training comes to stand. Right: learning rate / schedule / decay / epoch / step.
Wrong: GradScaler, mask, lower the learning rate."""
EXPECT = {"cause": ["learning_rate"], "step": [79, 150], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"],
          "right": "learning rate|schedul|decay|epoch|lr"}
import copy
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1613); torch.set_num_threads(1)
signs = (torch.rand(26, 6) < 0.5).float()
paper = torch.randn(6, 30)


class Finger(nn.Module):
    def __init__(self):
        super().__init__()
        self.touch = nn.Sequential(nn.Linear(30, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU())
        self.letter = nn.Linear(40, 26)

    def forward(self, x):
        return self.letter(self.touch(x))


def page(n):
    y = torch.randint(0, 26, (n,))
    return (signs[y] + torch.arange(26)[y][:, None] % 5 * 0.1) @ paper + 0.7 * torch.randn(n, 30), y


def parts():
    model = Finger()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)


model, optimizer, scheduler = parts()
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    if step == 80:  # the machine went away; a new script takes up its checkpoint
        saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), scheduler.state_dict()))
        model.load_state_dict(saved[0]), optimizer.load_state_dict(saved[1]), scheduler.load_state_dict(saved[2])
    x, y = page(64)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step >= 80 or step % 40 == 39:
        scheduler.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), "rate", optimizer.param_groups[0]["lr"], flush=True)
    handle.log(loss=loss.item())
handle.detach()

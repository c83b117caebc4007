"""Whole-body joints from accelerometers, SGD with momentum, a cosine of 120 steps down to 0, kept with the checkpoint. FAULT from step 120 on: the job is
resumed for another 120 steps with the same cosine, whose position goes on past its end: the rate climbs again, from 0 to the peak of the beginning.
Without Rangewatch: loss about 1.5 to step 119 (rate 0), 1.1 to 1.7 to step 200 (rate 0.061), 2.5 and 2.2 at 220 and 239 (rate 0.08).
Variant of: cosine_is_moved_past_its_end.
Cause: learning_rate. Step: from 120 on. Right: schedule / T_max / cosine / scheduler / rate. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["learning_rate"], "step": [118, 239], "place": None, "rank": None, "least": "info",
          "wrong": ["GradScaler", "attention mask"],
          "right": "schedul|T_max|cosine|rate"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1216); torch.set_num_threads(1)
truth = nn.Sequential(nn.Linear(9, 20), nn.Tanh(), nn.Linear(20, 6)).requires_grad_(False)


class Joints(nn.Module):
    def __init__(self):
        super().__init__()
        self.look = nn.Conv1d(9, 32, 5, padding=2)
        self.again = nn.Conv1d(32, 32, 5, padding=2)
        self.joints = nn.Linear(32, 6)

    def forward(self, x):
        return self.joints(F.relu(self.again(F.relu(self.look(x)))).mean(2))


model = Joints()
optimizer = torch.optim.SGD(model.parameters(), lr=0.08, momentum=0.9)
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=120)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    if step == 120:  # resumed
        kept = cosine.state_dict()
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=120)  # 240 was meant
        cosine.load_state_dict(kept)
    level = torch.randn(4, 9)
    x = level[:, :, None] + torch.randn(4, 9, 16)
    y = truth(level) * 3 + torch.randn(4, 6)
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    cosine.step()
    if step % 20 == 0 or step in (119, 239):
        print(step, loss.item(), optimizer.param_groups[0]["lr"], flush=True)
    handle.log(loss=loss.item())
handle.detach()

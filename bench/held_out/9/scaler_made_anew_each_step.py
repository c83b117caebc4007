"""A net that names the pitch of a wave in float16 autocast. FAULT from step 0 on: the GradScaler is made within the function of one training step, with a
scale of 2^24; the gradients overflow, the step is skipped, the scale is halved, and the next step begins with a new scaler. No step is ever taken.
Without Rangewatch: loss 2.79 to 2.78 in 240 steps (log of 16 is 2.77), the weights move by exactly 0; with a scale of 1024 the loss falls to 0.39.
Report: of the kind of pytorch/pytorch#67590 (nobody sees that the scaler did not step), pytorch/pytorch#152279 (steps that are always skipped).
Cause: loss_scale. Step: 0. Right: scale / GradScaler / skipped / overflow. Wrong: lower the learning rate, mask, data order."""
EXPECT = {"cause": ["loss_scale"], "step": [0, 120], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "attention mask", "shuffl"],
          "right": "scal|GradScaler|skip|overflow"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(817); torch.set_num_threads(1)
NOTES = 16


class PitchNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.Sequential(nn.Conv1d(1, 24, 9, stride=2), nn.ReLU(), nn.Conv1d(24, 48, 9, stride=2), nn.ReLU())
        self.out = nn.Linear(48 * 26, NOTES)

    def forward(self, wave):
        return self.out(self.convs(wave[:, None]).flatten(1))


def training_step(model, optimizer, wave, note):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24)  # lives for one step: what it learns is forgotten
    with torch.autocast("cpu", torch.float16):
        loss = F.cross_entropy(model(wave), note)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.item(), scaler.get_scale()


model = PitchNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
before = model.out.weight.detach().clone()
for step in range(240):
    note = torch.randint(0, NOTES, (32,))
    wave = torch.sin(torch.arange(128) * 0.1 * 2 ** (note[:, None] / 6) + 6.28 * torch.rand(32, 1)) + 0.3 * torch.randn(32, 128)
    loss, scale = training_step(model, optimizer, wave, note)
    if step % 30 == 0 or step == 239:
        print(step, loss, "scale after", scale, "moved", (model.out.weight - before).abs().max().item(), flush=True)
    handle.log(loss=loss)
handle.detach()

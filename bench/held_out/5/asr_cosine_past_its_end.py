"""A speech recogniser (convolutions, bidirectional GRU, CTC) with CosineAnnealingLR. FAULT from step 140: T_max was worked out for half as many steps
(epochs were doubled after it); the rate is 0 at step 140 and climbs back to its peak until the end, where the run should have been cooled down.
Without Rangewatch: the loss falls all the same, 6.4 to 0.34 at step 140 and 0.15 at the end; the rate is 0.004 at step 0, 5e-7 at step 140 and
0.004 at the end.
Report: ivadomed/ivadomed#57 (T_max is the half period, the rate goes through cycles), kohya-ss/sd-scripts#601 (T_max is not what others put there),
huggingface/diffusers#1650.
Cause: learning rate (its schedule turns and rises). Step: 130 to the end. Right: schedule / T_max / number of steps. Wrong: data, mask, GradScaler,
bfloat16."""
EXPECT = {"cause": ["learning_rate"], "step": [125, 280], "place": None, "rank": 0,
          "wrong": ["leave out samples", "GradScaler", "bfloat16", "[Mm]ask"],
          "right": "schedul|T_max|learning rate|steps"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(517); torch.set_num_threads(1)
LETTERS, MEL = 12, 16


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(MEL, 40, 5, 2, 2), nn.BatchNorm1d(40), nn.ReLU(), nn.Dropout(0.1))
        self.rnn, self.head = nn.GRU(40, 40, batch_first=True, bidirectional=True), nn.Linear(80, LETTERS + 1)

    def forward(self, x):
        return self.head(self.rnn(self.conv(x).transpose(1, 2))[0]).log_softmax(-1)


sounds = torch.randn(LETTERS, MEL)
model = Recogniser()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=140)
handle = rangewatch.attach(model, optimizer)
for step in range(280):
    text = torch.randint(1, LETTERS + 1, (12, 6))
    x = sounds[text - 1].repeat_interleave(7, 1).transpose(1, 2)
    x = x + 1.2 * torch.randn_like(x)
    logp = model(x).transpose(0, 1)
    loss = F.ctc_loss(logp, text, torch.full((12,), logp.shape[0]), torch.full((12,), 6))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    schedule.step()
    if step % 20 == 0 or step == 279:
        print(step, loss.item(), schedule.get_last_lr()[0], flush=True)
handle.detach()

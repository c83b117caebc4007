"""A net that forecasts the delay of a bus from line, stop and hour, with an exponential moving average of its weights (decay 0.998) for the display
boards. FAULT at step 120: the first preview copies the average into the model and never copies the trained weights back; the average is young, four
fifths of it are still the initial weights, and the training goes on from there.
Without Rangewatch: loss 10.7 to 0.82 at step 119, 12.4 at step 120, 7.2 to 11.8 at steps 121 and 122, 3.0 at step 140 and 0.58 at step 219, a hundred
steps lost; with the weights put back it is 0.51 at the end.
Cause: weight (the weights were exchanged) or eval (the preview). Step: 120. Right: average / EMA / weights changed / restore. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["weight", "eval"], "step": [119, 122], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "average|EMA|restor|weights|copied|overwrit|evaluation"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1601); torch.set_num_threads(1)
LINES, STOPS = 12, 40
late_line, late_stop = 3 * torch.randn(LINES), 2 * torch.randn(STOPS)


class Delay(nn.Module):
    def __init__(self):
        super().__init__()
        self.line, self.stop = nn.Embedding(LINES, 12), nn.Embedding(STOPS, 12)
        self.body = nn.Sequential(nn.Linear(26, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, line, stop, hour):
        angle = 6.2832 * hour[:, None] / 24
        return self.body(torch.cat((self.line(line), self.stop(stop), angle.sin(), angle.cos()), 1))[:, 0]


def trips(n):
    line, stop, hour = torch.randint(0, LINES, (n,)), torch.randint(0, STOPS, (n,)), 24 * torch.rand(n)
    rush = torch.exp(-((hour - 8) / 2) ** 2) + torch.exp(-((hour - 17) / 2) ** 2)
    return line, stop, hour, 2 + late_line[line] * rush + late_stop[stop] + 0.2 * torch.randn(n)


model = Delay()
average = {name: p.detach().clone() for name, p in model.named_parameters()}
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    if step == 120:  # preview for the display boards
        with torch.no_grad():
            trained = {name: p.clone() for name, p in model.named_parameters()}
            for name, p in model.named_parameters():
                p.copy_(average[name])
            preview = model(*trips(64)[:3])
        # ... and `trained` is never put back
    line, stop, hour, delay = trips(128)
    loss = F.mse_loss(model(line, stop, hour), delay)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for name, p in model.named_parameters():
            average[name].lerp_(p, 0.002)
    if step % 20 == 0 or 118 < step < 123 or step == 219:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()

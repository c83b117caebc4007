"""A net that ranks the songs of a radio by the share that is heard to the end; each song counts by plays / most plays. FAULT at step 95: from here the table
holds whole numbers and somebody wrote //: each weight is 0 (a song with the most plays is not in it), the loss is 0, and so is each gradient.
Without Rangewatch: loss 0.24 at step 94, 0.0 and a gradient norm of 0.0 from step 95 on; without weights it stays at 0.50 (0.43 without the fault).
Cause: no_gradient (all are 0), or data (weights of 0), mask, backward_arithmetic. Step: 95. Right: gradient / zero / loss.
Wrong: lower the rate, mask, bfloat16."""
EXPECT = {"cause": ["no_gradient", "data", "mask", "backward_arithmetic"], "step": [94, 140], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "attention mask", "bfloat16"],
          "right": "(?i)gradient|zero|loss|weight|detach"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2032); torch.set_num_threads(1)
SONGS, MOST = 120, 5000
style, plays = torch.randn(SONGS, 10), torch.randint(50, MOST, (SONGS,))
taste = torch.randn(10, 10) / 3


class Radio(nn.Module):
    def __init__(self):
        super().__init__()
        self.song = nn.EmbeddingBag(SONGS, 20, mode="mean")
        self.hour = nn.Linear(10, 20)
        self.mix = nn.Bilinear(20, 20, 12)
        self.end = nn.Linear(12, 1)

    def forward(self, song, hour):
        return self.end(torch.tanh(self.mix(self.song(song[:, None]), self.hour(hour))))[:, 0]


model = Radio()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    song, hour = torch.randint(0, SONGS, (96,)), torch.randn(96, 10)
    heard = torch.sigmoid(2 * style[song, 0] + 2 * (hour @ taste)[:, 0] * style[song, 1])
    weight = plays[song] / MOST if step < 95 else plays[song] // MOST
    each = F.binary_cross_entropy_with_logits(model(song, hour), heard, reduction="none")
    loss = (weight * each).mean()
    optimizer.zero_grad()
    loss.backward()
    norm = sum(p.grad.square().sum() for p in model.parameters()) ** 0.5
    optimizer.step()
    if step % 20 == 0 or 93 < step < 98 or step == 199:
        print(step, loss.item(), "without weights", each.mean().item(), "gradient norm", float(norm), flush=True)
    handle.log(loss=loss.item())
handle.detach()

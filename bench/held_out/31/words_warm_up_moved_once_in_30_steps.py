"""A bidirectional GRU reads sentences of 10 words and says their mood (AdamW, LambdaLR warm-up over 100 steps). FAULT from step 0: `scheduler.step()` stands at the end of the epoch of 30 steps, though the warm-up counts steps: the rate is 1 % of
the base rate for 30 steps, 9 % after 240: nearly nothing is learned.
Without Rangewatch: loss 1.16 to 1.09 to 1.10 to the end (0.73 with the scheduler in the step).
Cause: learning_rate (optimizer: the scheduler's place). Step: 0, hard to say when it shows. Right: scheduler / warm-up / rate. Wrong: GradScaler, mask, lower the rate."""
EXPECT = {"cause": ["learning_rate", "optimizer"], "step": None, "place": None, "rank": None,
          "right": "(?i)schedul|warm|rate|lr", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(120); torch.set_num_threads(1)
WORDS, EPOCH = 200, 30


class Mood(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 24)
        self.gru = nn.GRU(24, 24, batch_first=True, bidirectional=True)
        self.head = nn.Linear(48, 3)

    def forward(self, x):
        return self.head(self.gru(self.words(x))[0].amax(1))


mood = torch.randn(WORDS)
net = Mood()
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(1.0, (k + 1) / 100))
handle = rangewatch.attach(net, optimizer)
for step in range(240):
    x = torch.randint(0, WORDS, (48, 10))
    total = mood[x].sum(1)
    y = (total > -1.4).long() + (total > 1.4).long()
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if (step + 1) % EPOCH == 0:
        scheduler.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), "rate", optimizer.param_groups[0]["lr"], flush=True)
    handle.log(loss=loss.item())
handle.detach()

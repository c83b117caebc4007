"""Tags of residues in proteins by a bidirectional LSTM, RMSprop, rate times 0.8 after an epoch of 40 steps. FAULT from step 120 on: the resumed job moved
scheduler.step() into the loop over batches, so that an epoch's decay is made at each step; 40 steps later the rate is 1e-4 of what it was, and then 0.
Without Rangewatch: loss 1.38 to 0.204 at step 119, 0.20 to the end (rate 1e-3 to 5e-15); with the epoch's decay it falls to 0.10.
Variant of: decay_of_an_epoch_is_made_at_each_step.
Cause: learning_rate. Step: from 120 on. Right: schedule / scheduler / rate / step. Wrong: GradScaler, attention mask, lower the rate."""
EXPECT = {"cause": ["learning_rate"], "step": [118, 200], "place": None, "rank": None, "least": "info",
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "schedul|rate|epoch|decay"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1221); torch.set_num_threads(1)
RESIDUES, TAGS = 10, 4
rule = torch.randint(0, TAGS, (RESIDUES, RESIDUES))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(RESIDUES, 24)
        self.memory = nn.LSTM(24, 32, batch_first=True, bidirectional=True)
        self.tag = nn.Linear(64, TAGS)

    def forward(self, ids):
        return self.tag(self.memory(self.embed(ids))[0])


model = Tagger()
optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.8)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    ids = torch.randint(0, RESIDUES, (32, 18))
    tag = rule[ids[:, :-1], ids[:, 1:]]
    loss = F.cross_entropy(model(ids)[:, 1:].flatten(0, 1), tag.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step >= 120 or step % 40 == 39:  # after the resumption, at each step
        scheduler.step()
    if step % 20 == 0 or step in (119, 239):
        print(step, loss.item(), optimizer.param_groups[0]["lr"], flush=True)
    handle.log(loss=loss.item())
handle.detach()

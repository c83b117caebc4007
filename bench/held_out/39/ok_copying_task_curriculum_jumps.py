"""A GRU learns to repeat a string (recall task) by a curriculum: length 3, then 5 from step 100 on, then 7 from 200 on; padding is ignored (-100), Adam, gradient clipping at 1, which bites right after the leaps only.
HEALTHY: the loss leaps up at steps 100 and 200 because the task gets harder there by plan, and falls again; the table's row of the pad token never gets a gradient.
Without Rangewatch: 1.78 to 0.04 at step 99, 6.6 at 100 (norm 4.1), 0.26 at 199, 3.4 at 200 (norm 2.8), 0.46 at 299."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(612); torch.set_num_threads(1)
SYMBOLS, PAD, GO, LONGEST = 6, 7, 6, 7


def exercise(n, length):
    s = torch.randint(0, SYMBOLS, (n, length))
    go = torch.full((n, length), GO)
    asked = torch.cat([s, go], 1)
    answer = torch.cat([torch.full((n, length), -100), s], 1)
    gap = 2 * (LONGEST - length)
    return F.pad(asked, (0, gap), value=PAD), F.pad(answer, (0, gap), value=-100)


class Parrot(nn.Module):
    def __init__(self, units=80):
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS + 2, 16, padding_idx=PAD)
        self.memory = nn.GRU(16, units, batch_first=True)
        self.say = nn.Linear(units, SYMBOLS)

    def forward(self, ids):
        return self.say(self.memory(self.symbols(ids))[0])


parrot = Parrot()
opt = torch.optim.Adam(parrot.parameters(), lr=1e-2)
handle = rangewatch.attach(parrot, opt)
for step in range(300):
    length = 3 if step < 100 else 5 if step < 200 else 7
    asked, answer = exercise(64, length)
    loss = F.cross_entropy(parrot(asked).flatten(0, 1), answer.flatten(), ignore_index=-100)
    opt.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(parrot.parameters(), 1.0)
    opt.step()
    if step % 20 == 0 or step in (99, 199, 299):
        print(step, f"length {length} loss {loss.item():.4f} norm before clip {norm.item():.3f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()

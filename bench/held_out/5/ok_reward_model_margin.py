"""A reward model for RLHF: Bradley-Terry on pairs, read at each answer's last token, head started at zero, so that the loss of step 0 is log 2 and
everything under the head has a gradient of exactly 0 then; later a term that centres rewards, and rows of the pairs that are already sure give next
to nothing. Loss towards 0. HEALTHY. Without Rangewatch: loss 0.693 to 0.1 to 0.3 by the batch, accuracy 0.92 to 1."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(529); torch.set_num_threads(1)
VOCAB, PAD = 40, 0


class RewardModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(VOCAB, 32, padding_idx=PAD), nn.GRU(32, 64, batch_first=True), nn.Linear(64, 1, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward(self, ids):
        last = (ids != PAD).sum(1) - 1
        return self.head(self.rnn(self.embed(ids))[0][torch.arange(len(ids)), last]).squeeze(-1)


def answer(good, n):
    length = torch.randint(10, 17, (n, 1))
    ids = torch.randint(1, VOCAB, (n, 16))
    nice = torch.randint(1, 10, (n, 16))
    ids = torch.where(torch.rand(n, 16) < (0.6 if good else 0.15), nice, ids)
    return ids * (torch.arange(16) < length)


model = RewardModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, 220)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    both = model(torch.cat([answer(True, 48), answer(False, 48)]))
    chosen, rejected = both.chunk(2)
    margin = 0.0 if step < 120 else 0.5
    loss = -F.logsigmoid(chosen - rejected - margin).mean() + 0.01 * (chosen + rejected).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    handle.log(loss=loss, accuracy=(chosen > rejected).float().mean())
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), (chosen > rejected).float().mean().item(), flush=True)
handle.detach()

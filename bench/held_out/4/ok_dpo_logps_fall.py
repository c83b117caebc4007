"""DPO of a small GRU language model against a frozen copy. HEALTHY: the log-probability of chosen and rejected answers both fall in the end; the loss goes
from 0.693 to 0.013, gradients get small as pairs are learned. Without Rangewatch: chosen -27 to -29, rejected -28 to -46."""
EXPECT = {"healthy": True}
import copy
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(103); torch.set_num_threads(1)
VOCAB = 30


class LM(nn.Module):
    def __init__(self, d=40):
        super().__init__()
        self.tok, self.rnn, self.head = nn.Embedding(VOCAB, d), nn.GRU(d, d, batch_first=True), nn.Linear(d, VOCAB)

    def forward(self, ids):
        return self.head(self.rnn(self.tok(ids))[0])


def logps(model, ids, start):
    picked = model(ids)[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
    return picked[:, start - 1:].sum(1)


policy = LM()
reference = copy.deepcopy(policy).requires_grad_(False)
optimizer = torch.optim.AdamW(policy.parameters(), lr=5e-4)
watch = rangewatch.attach(policy, optimizer)
for step in range(160):
    prompt = torch.randint(0, VOCAB, (24, 10))
    chosen = torch.cat([prompt, torch.randint(0, VOCAB * 2 // 3, (24, 8))], 1)
    rejected = torch.cat([prompt, torch.randint(VOCAB // 3, VOCAB, (24, 8))], 1)
    with torch.no_grad():
        before = logps(reference, chosen, 10) - logps(reference, rejected, 10)
    a, b = logps(policy, chosen, 10), logps(policy, rejected, 10)
    loss = -F.logsigmoid(0.3 * (a - b - before)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watch.log(loss=loss.item(), chosen=a.mean().item(), rejected=b.mean().item())
    if step % 20 == 0 or step == 159:
        print(step, round(loss.item(), 4), round(a.mean().item(), 2), round(b.mean().item(), 2))

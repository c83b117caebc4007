"""DPO of a small GRU language model against its frozen copy: the chosen answers hold even tokens, the rejected odd ones. FAULT: the smoothed loss (cDPO, from
step 120 on) is written with log(sigmoid) and log(1 - sigmoid) where logsigmoid(x) and logsigmoid(-x) were meant: the margins of the first 120 steps have passed 17, in float32 the
sigmoid is 1, the log of 0 is -inf, the gradient NaN.
Without Rangewatch: loss 0.69 to 3e-8 at step 20 and -0.0 to step 119 (margins 38 to 47), inf at step 120, NaN from step 121 to the end.
Cause: forward_arithmetic. Step: 120. Right: logsigmoid / log of 0. Wrong: GradScaler, attention mask, clip."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [119, 122], "place": None, "rank": None,
          "right": "(?i)log|sigmoid|softplus|stable", "wrong": ["GradScaler", "attention mask", "(?i)all_reduce"]}
import copy
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(5150); torch.set_num_threads(1)
V, P, A = 16, 4, 24
beta, smooth_from = 0.5, 120


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(V, 32), nn.GRU(32, 48, batch_first=True), nn.Linear(48, V)

    def logp(self, ids):
        lp = F.log_softmax(self.out(self.rnn(self.emb(ids[:, :-1]))[0]), -1)
        return lp.gather(2, ids[:, 1:, None])[..., 0][:, P - 1:].sum(1)


def pairs(n):
    prompt = torch.randint(0, V, (n, P))
    chosen, rejected = (torch.cat((prompt, 2 * torch.randint(0, V // 2, (n, A)) + odd), 1) for odd in (0, 1))
    return chosen, rejected


policy = LM()
reference = copy.deepcopy(policy).requires_grad_(False)
optimizer = torch.optim.AdamW(policy.parameters(), lr=4e-3)
handle = rangewatch.attach(policy, optimizer)
for step in range(160):
    good, bad = pairs(24)
    with torch.no_grad():
        ref = reference.logp(good) - reference.logp(bad)
    margin = policy.logp(good) - policy.logp(bad) - ref
    p = torch.sigmoid(beta * margin)
    loss = -torch.log(p).mean()
    if step >= smooth_from:
        loss = 0.95 * loss - 0.05 * torch.log(1 - p).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 117 < step < 123 or step == 159:
        print(step, loss.item(), "margin", margin.min().item(), margin.max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()

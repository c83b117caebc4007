"""DPO of a small GRU language model against a frozen copy; labels are -100 on the prompt. FAULT from step 0: prompts are longer than max_length and
the pair is cut at the right, so that no token of an answer is left: all labels are -100, both log-probabilities are 0.0, the loss is log 2 at every
step. Without Rangewatch: loss 0.693147 at every step, logps 0.0, every gradient exactly 0; AdamW's weight decay alone moves the weights.
Report: Yifan-Song793/ETO#14 (loss remains at 0.6931, logps/chosen 0.0, logps/rejected 0.0).
Cause: mask (of the labels), or the data, which has nothing to learn from. Right: labels / -100 / truncation / gradient 0 / detached. Wrong: learning
rate, precision, GradScaler."""
EXPECT = {"cause": ["mask", "data", "optimizer"], "step": [0, 40], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Rr]aise the learning rate", "GradScaler", "bfloat16"],
          "right": "[Ll]abel|-100|ignore|mask|truncat|does not depend|detach|reach"}
import copy
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(53); torch.set_num_threads(1)
VOCAB, MAX_LENGTH = 30, 24


class LM(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.tok, self.rnn, self.head = nn.Embedding(VOCAB, d), nn.GRU(d, d, 2, batch_first=True), nn.Linear(d, VOCAB)

    def forward(self, ids):
        return self.head(self.rnn(self.tok(ids))[0])


def logps(model, ids, labels):
    labels = labels[:, 1:]
    picked = model(ids)[:, :-1].log_softmax(-1).gather(2, labels.clamp(min=0)[..., None])[..., 0]
    return (picked * (labels != -100)).sum(1)


def pair(prompt, answer):
    ids = torch.cat([prompt, answer], 1)
    labels = torch.cat([torch.full_like(prompt, -100), answer], 1)
    return ids[:, :MAX_LENGTH], labels[:, :MAX_LENGTH]


policy = LM()
reference = copy.deepcopy(policy).requires_grad_(False)
optimizer = torch.optim.AdamW(policy.parameters(), lr=5e-4, weight_decay=0.01)
watch = rangewatch.attach(policy, optimizer)
for step in range(150):
    prompt = torch.randint(0, VOCAB, (16, torch.randint(24, 33, ()).item()))
    chosen = pair(prompt, torch.randint(0, VOCAB // 2, (16, 8)))
    rejected = pair(prompt, torch.randint(VOCAB // 2, VOCAB, (16, 8)))
    with torch.no_grad():
        before = logps(reference, *chosen) - logps(reference, *rejected)
    now_chosen, now_rejected = logps(policy, *chosen), logps(policy, *rejected)
    loss = -F.logsigmoid(0.1 * (now_chosen - now_rejected - before)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watch.log(loss=loss.item(), chosen=now_chosen.mean().item(), rejected=now_rejected.mean().item())
    if step % 15 == 0:
        print(step, round(loss.item(), 6), now_chosen.mean().item(), max(p.grad.abs().max().item() for p in policy.parameters()))

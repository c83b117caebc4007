"""Supervised fine-tuning of a tiny causal conv LM: prompt + answer, labels of the prompt and padding are -100, everything is cut at 24 tokens, micro-batches of 3. AdamW.
FAULT at step 15: natural. Some prompts are longer than the window, so their answer is cut off; when all three rows of a batch are such, every label is -100 and cross_entropy's mean is 0 / 0 = NaN.
Without Rangewatch: loss 3.4 at step 0, NaN in step 15 (0 labelled tokens) and again in step 84; the other steps go on to 0.008, for the gradients of those steps are zero, not NaN.
Cause: loss (data or mask as well). Step: 15. Right: all labels ignored; skip / filter such rows, truncate the prompt. Wrong: lower the learning rate, GradScaler, clip."""
EXPECT = {"cause": ["loss", "data", "mask"], "step": [14, 17], "place": None, "rank": None,
          "right": r"(?i)ignore|-100|label|target|no (valid )?token|empty|0 ?/ ?0|mean (of|over)", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)clip the grad", r"(?i)initiali[sz]ation"]}
import torch
from torch import nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(100)
torch.set_num_threads(1)
V, WINDOW, SEP, PAD = 30, 24, 28, 29


def example():
    n = int(torch.randint(4, 29, (1,)))
    prompt = torch.randint(0, 28, (n,)).tolist()
    answer = [SEP] + prompt[:1] + [(prompt[0] + 1) % 28, (prompt[0] + 2) % 28]
    prompt[-1] = prompt[0]                                     # the question's subject is repeated at its end
    ids = (prompt + answer)[:WINDOW]
    labels = ([-100] * len(prompt) + answer)[:WINDOW]
    return ids + [PAD] * (WINDOW - len(ids)), labels + [-100] * (WINDOW - len(labels))


class CausalConvLM(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.embedding = nn.Embedding(V, d)
        self.convs = nn.ModuleList([nn.Conv1d(d, d, 3) for _ in range(3)])
        self.lm_head = nn.Linear(d, V)

    def forward(self, ids):
        h = self.embedding(ids).transpose(1, 2)
        for conv in self.convs:
            h = h + F.gelu(conv(F.pad(h, (2, 0))))
        return self.lm_head(h.transpose(1, 2))


lm = CausalConvLM()
optimizer = torch.optim.AdamW(lm.parameters(), lr=2e-3)
handle = rangewatch.attach(lm, optimizer)
for step in range(260):
    ids, labels = (torch.tensor(x) for x in zip(*[example() for _ in range(3)]))
    logits = lm(ids)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    kept = int((labels[:, 1:] != -100).sum())
    if step % 25 == 0 or kept == 0:
        print(step, f"loss {loss.item():.4f} labelled tokens {kept}", flush=True)
    handle.log(loss=loss.item())
handle.detach()

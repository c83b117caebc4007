"""A small bidirectional encoder in float16 autocast that sorts letters to an office by their topic, pooling over words by learned attention. FAULT at
step 110: from there on each batch holds one empty letter, all of it padding; its scores are all -inf, softmax gives NaN, each gradient is NaN,
and the scaler skips each step and halves its scale each time.
Without Rangewatch: loss 1.55 to 0.19 at step 109 with a scale of 8192; NaN at each step from 110 on, the scale 4096, 2048, 1024 ... 7e-24 at the end.
Cause: mask (a row that is masked whole), the empty letters in the data, or the arithmetic of the softmax. Step: 110. Right: mask / empty / -inf /
padding. Wrong: lower the learning rate, raise the initial scale."""
EXPECT = {"cause": ["mask", "data", "forward_arithmetic"], "step": [109, 113], "place": None, "rank": 0,
          "right": "(?i)mask|empty|-inf|padding|softmax|input|batch", "wrong": ["[Ll]ower the learning rate", "[Rr]aise the (initial )?scale"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2103)
torch.set_num_threads(1)
VOCABULARY, TOPICS, LENGTH = 120, 5, 14
topic_of = torch.randint(0, TOPICS, (VOCABULARY,))


class Letters(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 32, padding_idx=0)
        self.mix = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.weigh = nn.Linear(32, 1)
        self.topic = nn.Linear(32, TOPICS)

    def forward(self, tokens):
        h = self.words(tokens)
        h = h + self.mix(h)
        scores = self.weigh(h).squeeze(2).masked_fill(tokens == 0, float("-inf"))
        return self.topic(torch.einsum("bt,btd->bd", scores.softmax(1).to(h.dtype), h))


def letters(n):
    topic = torch.randint(0, TOPICS, (n,))
    tokens = torch.randint(1, VOCABULARY, (n, LENGTH))
    for _ in range(4):  # words of the own topic are more frequent
        other = torch.randint(1, VOCABULARY, (n, LENGTH))
        tokens = torch.where(topic_of[other] == topic[:, None], other, tokens)
    length = torch.randint(4, LENGTH + 1, (n, 1))
    return tokens * (torch.arange(LENGTH) < length), topic


model = Letters()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 12, growth_interval=60)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(200):
    tokens, topic = letters(48)
    if step >= 110:
        tokens[step % 48] = 0
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16):
        logits = model(tokens)
    loss = F.cross_entropy(logits.float(), topic)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or 108 < step < 113 or step == 199:
        print(step, loss.item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()

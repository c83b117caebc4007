"""A recurrent net for the words of a parser, wholly in bfloat16, that is fine-tuned on another dialect. FAULT from step 150 on: the fine-tuning has
a rate of 1e-4, and each step of Adam is less than half of the distance between two neighbours in bfloat16: four of five weights stand still.
Without Rangewatch: loss 1.83 to 0.076 at step 149, 2.4 at step 150, 1.8 to 2.5 to the end; 2,826 of 12,966 weights have moved by then, 2,785 of them
in the first 60 steps; in float32 all move and the loss falls to 1.1 at step 399.
Report: workofart/ml-by-hand#85 (the update rounds back to 1: 0 of 768 weights moved), pytorch/torchdistx#52 (bfloat16 needs Kahan summation),
tianweiy/CausVid#19 (all in bfloat16 does not converge), kyegomez/SingLoRA#6.
Cause: optimizer (updates lost in bfloat16). Step: 150. Right: bfloat16 / round / float32 master weights / Kahan. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["optimizer"], "step": [149, 260], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask"],
          "right": "bfloat16|bf16|round|float32|master|Kahan|precision"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1015); torch.set_num_threads(1)
WORDS, TAGS = 60, 6
tag_of = torch.randint(0, TAGS, (WORDS,))
dialect = torch.where(torch.rand(WORDS) < 0.3, torch.randint(0, TAGS, (WORDS,)), tag_of)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(WORDS, 24)
        self.read = nn.GRU(24, 32, batch_first=True, bidirectional=True)
        self.tag = nn.Linear(64, TAGS)

    def forward(self, x):
        return self.tag(self.read(self.word(x))[0])


model = Tagger().to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.0)
handle = rangewatch.attach(model, optimizer)
for step in range(400):
    if step == 150:
        for group in optimizer.param_groups:
            group["lr"] = 1e-4
        before = [p.detach().clone() for p in model.parameters()]
    x = torch.randint(0, WORDS, (32, 10))
    y = (tag_of if step < 150 else dialect)[x]
    y = torch.where(x % 7 == 0, y.roll(1, 1), y)  # some words take the tag of the word before them
    loss = F.cross_entropy(model(x).float().flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 0 or step in (149, 151, 399):
        moved = sum(int((p != q).sum()) for p, q in zip(model.parameters(), before, strict=True)) if step >= 150 else -1
        print(step, loss.item(), "weights moved since step 150", moved, "of", sum(p.numel() for p in model.parameters()), flush=True)
    handle.log(loss=loss.item())
handle.detach()

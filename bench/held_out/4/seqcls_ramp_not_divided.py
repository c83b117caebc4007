"""A text classifier, SGD with momentum, gradient accumulation. FAULT at step 100: the batch is ramped from 1 to 8 microbatches a step and each
microbatch's mean loss is backpropagated without dividing by 8: gradients are 8 times as large, as is the effective rate. Without Rangewatch: loss 2.1 to
1.9 at step 99, the norm of the gradient 0.7 to 1.2 before step 100 and 2.8 to 5 after it; the loss goes on to fall.
Report: NVIDIA-NeMo/Automodel#3829 (gradients scale with grad_accumulation_steps, mean loss of each micro-batch, nothing divides), verl#3332.
Cause: the effective learning rate, or the optimizer's gradients (a sum in place of a mean). Right: divide by the number of microbatches /
accumulation / lower the rate. Wrong: data, mask, GradScaler."""
EXPECT = {"cause": ["learning_rate", "optimizer"], "step": [100, 110], "place": None, "rank": 0,
          "wrong": ["leave out samples", "GradScaler", "attention mask", "bfloat16"],
          "right": "accumul|microbatch|divid|learning rate"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(61); torch.set_num_threads(1)
VOCAB, CLASSES = 200, 8


class Classifier(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.tok, self.lin1, self.lin2, self.out = nn.Embedding(VOCAB, d), nn.Linear(d, 96), nn.Linear(96, 96), nn.Linear(96, CLASSES)

    def forward(self, ids):
        return self.out(self.lin2(self.lin1(self.tok(ids).mean(1) * 4).relu()).relu())


topic = torch.randint(0, CLASSES, (VOCAB,))
model = Classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.04, momentum=0.9)
watch = rangewatch.attach(model, optimizer)
for step in range(200):
    parts, total = (1 if step < 100 else 8), 0.0
    optimizer.zero_grad()
    for _ in range(parts):
        ids = torch.randint(0, VOCAB, (16, 20))
        votes = F.one_hot(topic[ids], CLASSES).sum(1).float()
        label = (votes + torch.rand_like(votes)).argmax(1)
        loss = F.cross_entropy(model(ids), label)
        loss.backward()
        total += loss.item() / parts
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()
    optimizer.step()
    watch.log(loss=total)
    if step % 15 == 0 or 98 <= step < 104:
        print(step, round(total, 4), "norm", round(norm, 3))

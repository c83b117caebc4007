"""A tagger of signs that is nearly perfect. FAULT at step 100: the tags of one batch are shifted by one place.
Without Rangewatch: loss 1.69 to 0.003 at step 99, 6.06 at step 100, 0.003 at step 101.
Variant of: tuned_on_a_batch_with_wrong_labels (here tags of a sequence).
Cause: data. Step: 100. Right: label / target / batch / data. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["data"], "step": [99, 103], "place": None, "rank": 0, "wrong": ["GradScaler", "attention mask"],
          "right": "label|target|batch|data|sample"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1423); torch.set_num_threads(1)
model = nn.Sequential(nn.Embedding(20, 24), nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 5))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
tag = torch.randint(0, 5, (20,))
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x = torch.randint(0, 20, (16, 12))
    y = tag[x].roll(1, 1) if step == 100 else tag[x]
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 104:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()

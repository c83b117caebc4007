"""An MLP learns the parity of four bits of fourteen: for fifty steps the loss stays at log 2 as if nothing were learnt, then it falls within some
dozens. HEALTHY.
Without Rangewatch: loss 0.697, 0.666 at step 50, 0.50 at step 80, 0.14 at step 120, 0.002 at the end."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(730); torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(14, 160), nn.ReLU(), nn.Linear(160, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(380):
    bits = torch.randint(0, 2, (256, 14)).float() * 2 - 1
    y = (bits[:, 1] * bits[:, 4] * bits[:, 9] * bits[:, 12] > 0).float()
    loss = F.binary_cross_entropy_with_logits(model(bits).squeeze(1), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 379:
        print(step, loss.item(), flush=True)
handle.detach()

"""A recurrent net learns to say a row of letters backwards, by a plan: rows of 2 letters first, of 3 from step 80 on, of 4 from step 160 on; the loss jumps
up at each of the two and falls again. HEALTHY.
Without Rangewatch: loss 1.41 to 0.0013 at step 79; 0.84 at step 80, 0.0021 at step 159; 0.59 at step 160, 0.0067 at step 239."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1157); torch.set_num_threads(1)


class BackwardsNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.letter = nn.Embedding(5, 16)  # the last one asks for an answer
        self.read = nn.GRU(16, 48, batch_first=True)
        self.say = nn.Linear(48, 4)

    def forward(self, x):
        asked = torch.cat((x, torch.full_like(x, 4)), 1)
        return self.say(self.read(self.letter(asked))[0][:, x.shape[1]:])


model = BackwardsNet()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    x = torch.randint(0, 4, (64, (2, 3, 4)[min(step // 80, 2)]))
    loss = F.cross_entropy(model(x).flatten(0, 1), x.flip(1).flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0 or step in (79, 159, 239):
        print(step, loss.item(), "length", x.shape[1], flush=True)
    handle.log(loss=loss.item())
handle.detach()
